"""Adapters that come and go while the router runs: who may do what, and in which order it is done. An AdapterOperator."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from router.adapters import changes
from router.adapters.changes import Change
from router.adapters.names import canonical
from router.adapters.registry import Registry, named
from router.adapters.report import AdapterReport
from router.adapters.reports import Reports, connected
from router.fleet.adapters import WorkerGone
from router.fleet.fleet import Fleet, Pool
from router.fleet.link import WorkerLink
from router.tenancy.caller import Caller
from router.tenancy.records import AdapterRecord, Scope
from shared.errors import AlreadyExists, InvalidRequest, ModelNotFound, OctavoError, PermissionDenied, Unavailable
from shared.types import AdapterInfo

_T = TypeVar("_T")


def _require(caller: Caller) -> None:
    if not caller.scopes & {Scope.ADAPTERS, Scope.ADMIN}:
        raise PermissionDenied("this key does not have the scope adapters")


def _require_to_pin(caller: Caller) -> None:
    if Scope.ADMIN not in caller.scopes:
        raise PermissionDenied("adapters are pinned with a key that has the scope admin")


def _to_load(name: str, source: str, caller: Caller) -> tuple[str, str]:
    """Canonical name and source. A key that is no admin's gives the tenant's own names alone, to what lies under them in the adapter
    directory: any other path may be another tenant's.

    Raises PermissionDenied.
    """
    if Scope.ADMIN in caller.scopes:
        return name, source
    own = name if "/" in name else f"{caller.tenant.id}/{name}"
    if not own.startswith(f"{caller.tenant.id}/"):
        raise PermissionDenied(f"this key loads adapters under {caller.tenant.id}/ alone")
    if source not in ("", own):
        raise PermissionDenied(f"this key loads {own} from the adapter directory alone: leave the path out")
    return own, ""


def _no_such_adapter(name: str) -> ModelNotFound:
    """The same where the caller may not see it."""
    return ModelNotFound(f"there is no adapter {name[:256]!r}", param="name")


def _meant(name: str, caller: Caller) -> Sequence[str]:
    """The canonical names that `name` may stand for, first choice first: an admin's are canonical."""
    return (name,) if Scope.ADMIN in caller.scopes else canonical(name, caller)


def _actor(caller: Caller) -> str:
    return f"{caller.tenant.id}/{caller.key}" if caller.key else caller.tenant.id


def _record(name: str, model: str, source: str, digest: bytes, *, pinned: bool) -> AdapterRecord:
    """What the adapter directory has under a name (`source` empty) is followed as it changes: that record names no version."""
    tenant, own = named(name)
    if not source:
        source, digest = name, b""
    return AdapterRecord(name=own, tenant=tenant, model=model, source=source, digest=digest, pinned=pinned)


class Operator:
    """Changes of one name are made one after the other, so that all workers end with the same."""

    def __init__(self, fleet: Fleet, registry: Registry, reports: Reports):
        self._fleet = fleet
        self._registry = registry
        self._reports = reports
        self._running: set[asyncio.Task[Any]] = set()

    async def _whole(self, change: Coroutine[Any, Any, _T]) -> _T:
        """To its end, even where whoever asked for it has left: half a change would leave workers that differ."""
        task = asyncio.get_running_loop().create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    def list(self, caller: Caller, *, model: str = "") -> Sequence[AdapterReport]:
        """See AdapterOperator."""
        _require(caller)
        return self._reports.every(caller, model)

    def get(self, caller: Caller, name: str, *, model: str = "") -> AdapterReport:
        """See AdapterOperator. Raises PermissionDenied, or ModelNotFound where the caller sees none of this name."""
        _require(caller)
        for each in _meant(name, caller):
            found = self._reports.named(each, caller, model)
            if found is not None:
                return found
        raise _no_such_adapter(name)

    # ---- load

    async def load(
        self, caller: Caller, name: str, source: str, *, model: str = "", replace: bool = False, pin: bool = False
    ) -> AdapterReport:
        """See AdapterOperator. Raises PermissionDenied, AlreadyExists, ModelNotFound (no such base), RateLimited (the tenant has as many as
        it may), or what the workers say."""
        _require(caller)
        if pin:
            _require_to_pin(caller)
        name, source = _to_load(name, source, caller)
        change = Change(name=name, source=source, replace=replace, pin=pin)
        return await self._whole(self._load_all(caller, change, model))

    async def _load_all(self, caller: Caller, change: Change, model: str) -> AdapterReport:
        async with self._registry.lock(change.name):
            pool = self._fleet.resolve(model, caller.sees_model)
            self._check_model(change.name, pool.key.model)
            await self._load(pool, change, _actor(caller))
            return self._reports.one(change.name, pool, caller)

    def _check_model(self, name: str, model: str) -> None:
        known = self._registry.records.get(name)
        if known is not None and known.model != model:
            raise AlreadyExists(f"{name!r} is an adapter of {known.model!r}: unload it first", param="name")

    async def _load(self, pool: Pool, change: Change, actor: str) -> None:
        """The registry knows it before the workers do: what comes while they are told is told the same."""
        name, links = change.name, self._links(pool)
        had = {link: _entry(link, name) for link in links}
        former = self._registry.records.get(name)
        digest = await changes.stage(links, change)
        pinned = change.pin or (former is not None and former.pinned)
        record = _record(name, pool.key.model, change.source, digest, pinned=pinned)
        await self._registry.put(record, actor=actor)
        try:
            infos = await changes.commit(links, change, digest, had)
        except OctavoError:
            await self._undo(name, former, digest, actor)
            raise
        loaded = max(info.loaded_unix_ms for info in infos) / 1000
        self._registry.settle(name, loaded)

    async def _undo(self, name: str, former: AdapterRecord | None, digest: bytes, actor: str) -> None:
        """The version counts as unloaded, should a worker have it still."""
        if former is not None:
            await self._registry.put(former, actor=actor)
        else:
            await self._registry.drop(name, actor=actor, meant=(digest,))

    # ---- unload, pin

    async def unload(self, caller: Caller, name: str, *, model: str = "") -> str:
        """See AdapterOperator. Raises PermissionDenied, ModelNotFound where no worker has it, or the caller does not own it."""
        _require(caller)
        return await self._whole(self._unload_all(caller, name, model))

    async def _unload_all(self, caller: Caller, name: str, model: str) -> str:
        own = self._own(name, caller, model)
        async with self._registry.lock(own):
            pool = self._fleet.resolve(model, caller.sees_model)
            links = self._connected(pool)
            meant = {info.digest for info in map(_of(own), links) if info is not None}
            recorded = own in self._registry.records
            await self._registry.drop(own, actor=_actor(caller), meant=meant)
            gone = await changes.unload(links, own)
            if not gone and not recorded:
                raise _no_such_adapter(name)
        return own

    async def pin(self, caller: Caller, name: str, pinned: bool, *, model: str = "") -> AdapterReport:
        """See AdapterOperator."""
        _require_to_pin(caller)
        return await self._whole(self._pin_all(caller, name, pinned, model))

    async def _pin_all(self, caller: Caller, name: str, pinned: bool, model: str) -> AdapterReport:
        own = self._own(name, caller, model)
        async with self._registry.lock(own):
            pool = self._fleet.resolve(model, caller.sees_model)
            links = [link for link in self._links(pool) if _entry(link, own) is not None]
            if not links:
                raise WorkerGone("no worker has this adapter now", retry_after=1.0)
            await changes.pin(links, own, pinned, {link: _entry(link, own) for link in links})
            await self._note_pin(own, pool.key.model, pinned, _actor(caller))
            return self._reports.one(own, pool, caller)

    async def _note_pin(self, name: str, model: str, pinned: bool, actor: str) -> None:
        record = self._registry.records.get(name)
        if record is None:
            record = _record(name, model, "", b"", pinned=pinned)
        await self._registry.put(replace(record, pinned=pinned), actor=actor)

    # ---- names and workers

    def _own(self, name: str, caller: Caller, model: str) -> str:
        """The canonical name of one that is there and may be changed by the caller. Raises ModelNotFound."""
        prefix = "" if Scope.ADMIN in caller.scopes else f"{caller.tenant.id}/"
        pool = self._fleet.resolve(model, caller.sees_model)
        for each in _meant(name, caller):
            if each.startswith(prefix) and self._known(each, pool):
                return each
        raise _no_such_adapter(name)

    def _known(self, name: str, pool: Pool) -> bool:
        record = self._registry.records.get(name)
        if record is not None and record.model == pool.key.model:
            return True
        infos = map(_of(name), self._connected(pool))
        return any(info is not None and not self._registry.hides(info) for info in infos)

    def _connected(self, pool: Pool) -> Sequence[WorkerLink]:
        return connected(self._fleet, pool.key.model)

    def _links(self, pool: Pool) -> Sequence[WorkerLink]:
        """Those that take work and serve adapters. Raises InvalidRequest or Unavailable where there is none."""
        links = self._fleet.candidates(pool.key)
        able = [link for link in links if link.worker is not None and link.worker.info.max_adapters]
        if links and not able:
            raise InvalidRequest(f"no worker of {pool.key.model!r} serves adapters", param="name")
        if not able:
            raise Unavailable("no worker serves this model now", retry_after=1.0)
        return able


def _of(name: str) -> Callable[[WorkerLink], AdapterInfo | None]:
    return lambda link: _entry(link, name)


def _entry(link: WorkerLink, name: str) -> AdapterInfo | None:
    return None if link.worker is None else link.worker.stream.adapters.entries.get(name)
