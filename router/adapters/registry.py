"""Adapters that were loaded at run time: what each name is to mean at every worker of its model, those that come later included.

With a store it is the store's, shared by all routers. Without one it is in this router's memory, and learned from what workers have; then
the version that was loaded last is what a name is to mean. Names that were unloaded are remembered for a while with what they meant: a
worker that was away, or begins again, may still have them.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from weakref import WeakValueDictionary

from router.tenancy.records import AdapterRecord
from router.tenancy.store import Directory, Snapshot
from shared.errors import InvalidRequest, NotFound
from shared.types import AdapterInfo

MOST_UNLOADED = 10_000  # names that are remembered
MOST_VERSIONS = 8  # and of each

_LOG = logging.getLogger(__name__)


def named(name: str) -> tuple[str, str]:
    """Tenant (empty: shared) and name of a canonical name."""
    tenant, _, own = name.rpartition("/")
    return tenant, own


def source_of(record: AdapterRecord) -> str:
    """What a worker is to be asked for. A source that is the name itself is the adapter directory's entry."""
    return "" if record.source == record.canonical else record.source


def means(info: AdapterInfo, record: AdapterRecord) -> bool:
    """Whether what a worker has under the name is what it is to mean. Of a record without a digest any version will do."""
    return not record.digest or info.digest == record.digest


def satisfies(info: AdapterInfo | None, record: AdapterRecord) -> bool:
    """Whether a worker that says this of the name has nothing to be told."""
    return info is not None and info.pinned == record.pinned and means(info, record)


class Registry:
    """By canonical name. `lock` is held by whoever changes what a name means."""

    def __init__(self, store: Directory | None = None):
        self.records: dict[str, AdapterRecord] = {}
        self.unloaded: dict[str, tuple[bytes, ...]] = {}  # what each meant, last last; empty where that is not known
        self.changes = 0
        self._store = store
        self._least = 0  # snapshots before this revision do not know what was done here
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def learns(self) -> bool:
        """Whether what workers have tells what names are to mean."""
        return self._store is None

    def lock(self, name: str) -> asyncio.Lock:
        """One for each name."""
        return self._locks.setdefault(name, asyncio.Lock())

    def busy(self, name: str) -> bool:
        """Whether somebody changes it now."""
        return name in self._locks and self._locks[name].locked()

    def of(self, model: str) -> list[AdapterRecord]:
        """All of a model."""
        return [record for record in self.records.values() if record.model == model]

    def hides(self, info: AdapterInfo) -> bool:
        """Whether a worker has it only because it does not know yet that it was unloaded. Where a version is registered, that is meant."""
        record, meant = self.records.get(info.name), self.unloaded.get(info.name)
        if meant is None or (record is not None and record.digest):
            return False
        return not info.digest or b"" in meant or info.digest in meant

    # ---- changes

    async def put(self, record: AdapterRecord, *, actor: str) -> None:
        """Make or replace it. Raises NotFound (no such tenant), InvalidRequest, Unavailable (the store)."""
        if self._store is not None:
            await self._store.put_adapter(record, actor=actor)
            self._least = await self._store.revision()
        self._put(record)

    async def drop(self, name: str, *, actor: str, meant: Collection[bytes] = ()) -> None:
        """It is to mean nothing any more; what it `meant` anywhere is remembered as unloaded."""
        if self._store is not None and name in self.records:
            with suppress(NotFound):
                tenant, own = named(name)
                await self._store.delete_adapter(tenant, own, actor=actor)
            self._least = await self._store.revision()
        self._drop(name, meant)

    def settle(self, name: str, loaded: float) -> None:
        """Workers have it since then, by their clocks: what they tell of it later is no news. Where a store tells, there is none anyhow."""
        if self.learns and name in self.records:
            self.records[name] = replace(self.records[name], created=loaded)

    def lift(self, name: str, digest: bytes) -> None:
        """This version (empty: it is not known which) was loaded again, by whomever."""
        meant = self.unloaded.pop(name, None)
        if meant is None:
            return
        self.changes += 1
        left = tuple(each for each in meant if each not in (b"", digest))
        if left and digest:
            self.unloaded[name] = left

    def learn(self, info: AdapterInfo, model: str) -> None:
        """A worker has this, loaded by a call; where it is the newest of its name, it is what the name is to mean."""
        known, loaded = self.records.get(info.name), info.loaded_unix_ms / 1000
        if not info.digest or info.listed or (known is not None and known.created >= loaded):
            return
        tenant, own = named(info.name)
        try:
            record = AdapterRecord(
                name=own,
                tenant=tenant,
                model=model,
                source=info.source,
                digest=info.digest,
                pinned=info.pinned,
                created=loaded,
            )
        except InvalidRequest as error:
            _LOG.warning("adapter %s of a worker is not given to others: %s", info.name, error.message)
            return
        self._put(record)

    def unlearn(self, name: str) -> None:
        """A worker lost it by an order that was not given here."""
        if name in self.records:
            self._drop(name, ())

    def follow(self, snapshot: Snapshot) -> None:
        """What the store has now."""
        if snapshot.revision < self._least:
            return
        records = {record.canonical: record for record in snapshot.adapters}
        if records == self.records:
            return
        former, self.records = self.records, records
        self.changes += 1
        for name, record in former.items():
            self._succeeded(name, record)
        for name, record in records.items():
            self.lift(name, record.digest)

    def _put(self, record: AdapterRecord) -> None:
        name, former = record.canonical, self.records.get(record.canonical)
        self.records[name] = record
        self._succeeded(name, former)
        self.lift(name, record.digest)
        self.changes += 1

    def _drop(self, name: str, meant: Collection[bytes]) -> None:
        record = self.records.pop(name, None)
        self.changes += 1
        for digest in {*meant, *([record.digest] if record else ())} or {b""}:
            self._unloaded(name, digest)

    def _succeeded(self, name: str, former: AdapterRecord | None) -> None:
        """Remembers a version that is not meant any more: whoever was away may have it still, when the name is unloaded after all."""
        now = self.records.get(name)
        if former is not None and (now is None or (former.digest and now.digest != former.digest)):
            self._unloaded(name, former.digest)

    def _unloaded(self, name: str, meant: bytes) -> None:
        former = [each for each in self.unloaded.pop(name, ()) if each != meant]
        self.unloaded[name] = (*former[1 - MOST_VERSIONS :], meant)
        while len(self.unloaded) > MOST_UNLOADED:
            del self.unloaded[next(iter(self.unloaded))]
