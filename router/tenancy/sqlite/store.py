"""The Store of one host. Changes and quotas go through one thread; what only reads goes through another, and never holds those up."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from router.tenancy.records import NOTHING, AdapterRecord, AuditRecord, KeyRecord, PrefixRecord, TenantRecord
from router.tenancy.sqlite import books, directory, schema
from router.tenancy.sqlite.thread import StoreThread
from router.tenancy.store import (
    AuditLine,
    AuditQuery,
    Granted,
    Refused,
    Renewal,
    Settlement,
    Snapshot,
    UsageLine,
    UsageQuery,
    UsageTotal,
    Wanted,
)


class SqliteStore:
    """Implements Store. `clock` is the wall clock, in Unix seconds: the routers of a host share it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time, make: bool = True):
        """Raises sqlite3.Error, OSError or WrongVersion where there is no store to be had at `path`. `make`: one is made there."""
        if make:
            schema.make(path)
        connect = partial(schema.connect, path)
        self._clock = clock
        self._writer = StoreThread(connect, begin="IMMEDIATE", name="octavo-store")
        self._reader = StoreThread(connect, begin="DEFERRED", name="octavo-store-reader")

    # ---- Directory

    async def revision(self) -> int:
        """See Directory."""
        return await self._reader.do(directory.revision)

    async def snapshot(self) -> Snapshot:
        """See Directory."""
        return await self._reader.do(directory.snapshot)

    def _by(self, actor: str, origin: str) -> directory.By:
        return directory.By(actor=actor, origin=origin, now=self._clock())

    async def put_tenants(
        self,
        tenants: Sequence[TenantRecord],
        *,
        actor: str,
        origin: str = "",
        expected: Mapping[str, str] = NOTHING,
    ) -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.put_tenants(db, tenants, self._by(actor, origin), expected))

    async def delete_tenant(
        self, name: str, *, actor: str, origin: str = "", expected: Mapping[str, str] = NOTHING
    ) -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.delete_tenant(db, name, self._by(actor, origin), expected))

    async def add_key(self, key: KeyRecord, *, actor: str, origin: str = "") -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.add_key(db, key, self._by(actor, origin)))

    async def revoke_key(self, tenant: str, name: str, *, actor: str, origin: str = "") -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.revoke_key(db, tenant, name, self._by(actor, origin)))

    async def put_adapter(self, adapter: AdapterRecord, *, actor: str) -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.put_adapter(db, adapter, actor, self._clock()))

    async def delete_adapter(self, tenant: str, name: str, *, actor: str) -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.delete_adapter(db, tenant, name, actor, self._clock()))

    async def put_prefix(self, prefix: PrefixRecord, *, actor: str, origin: str = "") -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.put_prefix(db, prefix, self._by(actor, origin)))

    async def delete_prefix(self, name: str, *, actor: str, origin: str = "") -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.delete_prefix(db, name, self._by(actor, origin)))

    async def note(self, record: AuditRecord) -> None:
        """See Directory."""
        await self._writer.do(lambda db: directory.note(db, record))

    async def audit(self, *, since: float = 0.0, limit: int = 1_000) -> Sequence[AuditRecord]:
        """See Directory."""
        return await self._reader.do(lambda db: directory.audit(db, since, limit))

    async def audit_lines(self, query: AuditQuery) -> Sequence[AuditLine]:
        """See Directory."""
        return await self._reader.do(lambda db: directory.audit_lines(db, query))

    # ---- Books

    async def reserve(self, wanted: Wanted) -> Granted | Refused:
        """See Books."""
        return await self._writer.do(lambda db: books.reserve(db, wanted, self._clock()))

    async def renew(self, renewals: Sequence[Renewal]) -> None:
        """See Books."""
        await self._writer.do(lambda db: books.renew(db, renewals, self._clock()))

    async def settle(self, settlement: Settlement) -> bool:
        """See Books."""
        return await self._writer.do(lambda db: books.settle(db, settlement, self._clock()))

    async def abandon(self, charge_id: str) -> bool:
        """See Books."""
        return await self._writer.do(lambda db: books.abandon(db, charge_id))

    async def sweep(self) -> int:
        """See Books."""
        return await self._writer.do(lambda db: books.sweep(db, self._clock()))

    async def usage(self, query: UsageQuery) -> Sequence[UsageLine]:
        """See Books."""
        return await self._reader.do(lambda db: books.usage(db, query))

    async def totals(self, query: UsageQuery) -> Sequence[UsageTotal]:
        """See Books."""
        return await self._reader.do(lambda db: books.totals(db, query))

    # ----

    async def aclose(self) -> None:
        """See Store."""
        await self._writer.aclose()
        await self._reader.aclose()
