"""Adapters that come and go while the router runs: each change is made at every worker of the model."""

import asyncio
from collections.abc import Sequence
from weakref import WeakValueDictionary

from router.adapters.names import canonical
from router.fleet.adapters import load_adapter, unload_adapter
from router.fleet.fleet import Fleet, no_such_model
from router.fleet.link import WorkerLink
from router.tenancy.caller import Caller
from router.tenancy.records import Scope
from shared.errors import NotFound, PermissionDenied, Unavailable
from shared.types import AdapterInfo


def _require(caller: Caller) -> None:
    if not caller.scopes & {Scope.ADAPTERS, Scope.ADMIN}:
        raise PermissionDenied("this key does not have the scope adapters")


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


class Operator:
    """Changes of one name are made one after the other, so that all workers end with the same."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self, caller: Caller, name: str, source: str, *, model: str = "", replace: bool = False) -> str:
        """The canonical name. Where one worker refuses, no worker keeps a new name. Raises PermissionDenied, AlreadyExists, ModelNotFound
        (no such base), or what the worker says."""
        _require(caller)
        name, source = _to_load(name, source, caller)
        async with self._locks.setdefault(name, asyncio.Lock()):
            links = self._links(model, caller)
            had = {link for link in links if link.worker and name in link.worker.stream.adapters.entries}
            calls = [load_adapter(link, name, source, replace=replace) for link in links]
            results = await asyncio.gather(*calls, return_exceptions=True)
            await self._check(name, links, had, results)
        return name

    async def _check(
        self,
        name: str,
        links: Sequence[WorkerLink],
        had: set[WorkerLink],
        results: Sequence[AdapterInfo | BaseException],
    ) -> None:
        failures = [result for result in results if isinstance(result, BaseException)]
        if not failures:
            return
        done = [link for link, result in zip(links, results, strict=True) if isinstance(result, AdapterInfo)]
        new = [unload_adapter(link, name) for link in done if link not in had]
        await asyncio.gather(*new, return_exceptions=True)  # the first failure is what is told
        raise failures[0]

    async def unload(self, caller: Caller, name: str, *, model: str = "") -> str:
        """The canonical name. Raises PermissionDenied, ModelNotFound where no worker has it, or the caller does not own it."""
        _require(caller)
        own = [each for each in self._owned(name, caller) if self._known(each, model, caller)]
        if not own:
            raise no_such_model(name)
        async with self._locks.setdefault(own[0], asyncio.Lock()):
            calls = [unload_adapter(link, own[0]) for link in self._links(model, caller)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if all(isinstance(failure, NotFound) for failure in failures) and len(failures) == len(results):
            raise no_such_model(name)
        for failure in failures:
            if not isinstance(failure, NotFound):
                raise failure
        return own[0]

    def _owned(self, name: str, caller: Caller) -> list[str]:
        if Scope.ADMIN in caller.scopes:
            return [name]
        return [each for each in canonical(name, caller) if each.startswith(f"{caller.tenant.id}/")]

    def _known(self, name: str, model: str, caller: Caller) -> bool:
        links = self._links(model, caller)
        return any(link.worker and name in link.worker.stream.adapters.entries for link in links)

    def _links(self, model: str, caller: Caller) -> list[WorkerLink]:
        """Raises ModelNotFound, or Unavailable."""
        links = self._fleet.candidates(self._fleet.resolve(model, caller.sees_model).key)
        if not links:
            raise Unavailable("no worker serves this model now", retry_after=1.0)
        return links
