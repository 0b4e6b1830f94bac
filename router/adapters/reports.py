"""Puts together what an operator is told of adapters: from what workers tell, from the registry, and from what failed."""

from collections.abc import Sequence

from router.adapters.keeper import Keeper
from router.adapters.names import newest
from router.adapters.registry import Registry
from router.adapters.report import AdapterAt, AdapterReport
from router.fleet.fleet import Fleet, Pool
from router.fleet.link import WorkerLink
from router.tenancy.caller import Caller
from router.tenancy.records import Scope
from shared.types import AdapterInfo


def connected(fleet: Fleet, model: str) -> list[WorkerLink]:
    """Links to workers of this served name that may have adapters, whether they take work now or not."""
    links = [link for link in fleet.links if link.worker is not None]
    return [link for link in links if link.worker and link.worker.info.model == model and link.worker.info.max_adapters]


class Reports:
    """Of one router's fleet."""

    def __init__(self, fleet: Fleet, registry: Registry, keeper: Keeper):
        self._fleet = fleet
        self._registry = registry
        self._keeper = keeper

    def every(self, caller: Caller, model: str) -> list[AdapterReport]:
        """Of the models that the caller sees, or of this one alone."""
        return [report for each in self._models(model, caller) for report in self._of_model(each, caller)]

    def named(self, name: str, caller: Caller, model: str) -> AdapterReport | None:
        """Of `every` the first with this canonical name."""
        for each in self._models(model, caller):
            links = connected(self._fleet, each)
            if name in self._names(each, links, caller):
                return self._report(name, each, links, caller)
        return None

    def _models(self, model: str, caller: Caller) -> list[str]:
        models = {link.worker.info.model for link in self._fleet.links if link.worker is not None}
        models |= {record.model for record in self._registry.records.values()}
        return [each for each in sorted(models) if model in ("", each) and caller.sees_model(each)]

    def one(self, name: str, pool: Pool, caller: Caller) -> AdapterReport:
        """Of this name."""
        return self._report(name, pool.key.model, connected(self._fleet, pool.key.model), caller)

    def _of_model(self, model: str, caller: Caller) -> list[AdapterReport]:
        links = connected(self._fleet, model)
        return [self._report(name, model, links, caller) for name in sorted(self._names(model, links, caller))]

    def _names(self, model: str, links: Sequence[WorkerLink], caller: Caller) -> set[str]:
        """Of the model's adapters that the caller sees."""
        entries = [info for link in links if link.worker for info in link.worker.stream.adapters.entries.values()]
        names = {info.name for info in entries if not self._registry.hides(info)}
        names |= {record.canonical for record in self._registry.of(model)}
        return {name for name in names if Scope.ADMIN in caller.scopes or caller.sees_adapter(name)}

    def _report(self, name: str, model: str, links: Sequence[WorkerLink], caller: Caller) -> AdapterReport:
        record = self._registry.records.get(name)
        admin = Scope.ADMIN in caller.scopes
        told = admin or name.startswith(f"{caller.tenant.id}/")  # reasons may name others' paths
        places = [self._at(link, name, told=told) for link in links]
        infos = [place.info for place in places if place.info is not None]
        meant = [info for info in infos if record is None or not record.digest or info.digest == record.digest]
        best = newest(meant) if meant else AdapterInfo(name=name, digest=record.digest if record else b"")
        source = best.source or (record.source if record else "")
        return AdapterReport(
            name=name,
            model=model,
            digest=best.digest,
            rank=best.rank,
            bytes=max((info.bytes for info in meant), default=0),
            pinned=record.pinned if record else best.pinned,
            loaded_unix_ms=best.loaded_unix_ms,
            registered=record is not None,
            source=source if admin else "",
            workers=places,
        )

    def _at(self, link: WorkerLink, name: str, *, told: bool) -> AdapterAt:
        assert link.worker is not None
        info = link.worker.stream.adapters.entries.get(name)
        error = self._keeper.failure(link, name) or (info.error if info is not None else "")
        return AdapterAt(worker=link.worker.info.worker_id, info=info, error=error if told else "")
