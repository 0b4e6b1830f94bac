"""What the name of a model in a request means: a served model, or one of its adapters.

A served name wins. `base:name` is an adapter of that base; `name` alone is the caller's own `tenant/name` where there is one, else the
shared `name`, of whichever model has it. Of several versions under one name that of the registry is meant, else the one that was loaded
last. What the caller must not see is answered as what does not exist; what was loaded at run time and no worker has is never taken for
the base.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from router.adapters.registry import Registry
from router.adapters.view import AdapterRef, WorkerAdapters
from router.fleet.fleet import Fleet, Pool, PoolKey
from router.fleet.link import WorkerLink
from router.service import ModelCard
from router.tenancy.caller import Caller
from shared.errors import ModelNotFound, Unavailable
from shared.types import AdapterInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Meant:
    """A pool, and the adapter of it, if one is meant."""

    pool: Pool
    adapter: AdapterRef | None = None


def canonical(name: str, caller: Caller) -> Sequence[str]:
    """The adapters that `name` may stand for, first choice first."""
    names = (name,) if "/" in name else (f"{caller.tenant.id}/{name}", name)
    return tuple(each for each in names if caller.sees_adapter(each))


def newest(infos: Sequence[AdapterInfo]) -> AdapterInfo:
    """Of one name's entries at several workers that which was loaded last; those that have been read before others."""
    return max(infos, key=lambda info: (bool(info.digest), info.loaded_unix_ms, info.digest))


class Names:
    """Of all that the fleet serves. What the registry says of a name goes before what workers have under it; `why_nowhere` tells why none
    has what it says."""

    def __init__(self, fleet: Fleet, registry: Registry, why_nowhere: Callable[[str], str]):
        self._fleet = fleet
        self._registry = registry
        self._why_nowhere = why_nowhere

    def meant(self, model: str, caller: Caller) -> Meant:
        """Raises ModelNotFound, or Unavailable where no worker has it now."""
        try:
            return Meant(pool=self._fleet.resolve(model, caller.sees_model))
        except ModelNotFound:
            found = self._adapter(model, caller) if model else None
            if found is None:
                raise
            return found

    def holders(self, links: Sequence[WorkerLink], adapter: AdapterRef | None) -> list[WorkerLink]:
        """Those of `links` to which a request for `adapter` may go. Where none has it, none while it is being loaded again, else all: they
        tell why."""
        if adapter is None:
            return list(links)
        found = [link for link in links if link.worker and link.worker.stream.adapters.has(adapter)]
        return found or ([] if self._awaited(adapter) else list(links))

    def _awaited(self, adapter: AdapterRef) -> bool:
        record = self._registry.records.get(adapter.name)
        same = record is not None and record.digest in (b"", adapter.digest)
        return same and not self._why_nowhere(adapter.name)

    def cards(self, caller: Caller) -> list[ModelCard]:
        """The models that the caller sees, and after each its adapters, under names by which they can be asked for."""
        models = [card for card in self._fleet.cards() if caller.sees_model(card.id)]
        taken, cards = {card.id for card in models}, []
        for card in models:
            cards.append(card)
            for info in self._infos(card.id, caller):
                name = info.name if info.name not in taken else f"{card.id}:{info.name}"
                taken.add(name)
                cards.append(replace(card, id=name, parent=card.id, created=info.loaded_unix_ms // 1000))
        return cards

    def card(self, model: str, caller: Caller) -> ModelCard:
        """Of `cards` the one that `model` means. Raises as `meant` does."""
        meant = self.meant(model, caller)
        base, adapter = meant.pool.key.model, meant.adapter
        ids, parent = ((base,), "") if adapter is None else ((adapter.name, f"{base}:{adapter.name}"), base)
        for card in self.cards(caller):
            if card.parent == parent and card.id in ids:
                return card
        raise ModelNotFound(f"the model {model[:200]!r} does not exist", param="model")

    def _infos(self, model: str, caller: Caller) -> list[AdapterInfo]:
        by_name: dict[str, list[AdapterInfo]] = {}
        for pool in self._pools(model, caller):
            for info in chain.from_iterable(view.entries.values() for view in self._views(pool.key)):
                if self._usable(info, pool):
                    by_name.setdefault(info.name, []).append(info)
        return [newest(by_name[name]) for name in sorted(by_name) if caller.sees_adapter(name)]

    def _pools(self, model: str, caller: Caller) -> list[Pool]:
        """Of this served name, or of every one."""
        pools = self._fleet.pools()
        return [pool for pool in pools if model in ("", pool.key.model) and caller.sees_model(pool.key.model)]

    def _views(self, pool: PoolKey) -> list[WorkerAdapters]:
        links = self._fleet.candidates(pool)
        return [link.worker.stream.adapters for link in links if link.worker is not None]

    def _adapter(self, model: str, caller: Caller) -> Meant | None:
        """Raises Unavailable where no worker has it yet, or those that had it are gone and may come back."""
        asked = [("", model), *self._of_bases(model)]
        for base, name in asked:
            for each in canonical(name, caller):
                found = self._find(base, each, caller)
                if found is not None:
                    return found
        for base, name in asked:
            for each in canonical(name, caller):
                self._check_nowhere(base, each, caller)
        gone = {name for link in self._fleet.links if link.worker is None for name in link.had_adapters}
        gone -= self._registry.unloaded.keys()
        if any(each in gone for _, name in asked for each in canonical(name, caller)):
            raise Unavailable("no worker serves this adapter now", retry_after=1.0)
        return None

    def _check_nowhere(self, base: str, name: str, caller: Caller) -> None:
        """Raises Unavailable where it was loaded at run time, and no worker that is there now has it."""
        record = self._registry.records.get(name)
        if record is None or base not in ("", record.model) or not caller.sees_model(record.model):
            return
        # Why is the operator's to know: the reason may name paths.
        message = "the workers cannot load it again" if self._why_nowhere(name) else "no worker has it loaded yet"
        raise Unavailable(f"adapter {name!r}: {message}", retry_after=1.0, param="model", code="adapter_unavailable")

    def _of_bases(self, model: str) -> list[tuple[str, str]]:
        """Each way to read it as `base:name`. Both parts may hold colons."""
        bases = sorted(self._fleet.names(), key=len, reverse=True)
        return [(base, model[len(base) + 1 :]) for base in bases if model.startswith(f"{base}:")]

    def _usable(self, info: AdapterInfo, pool: Pool) -> bool:
        """Whether a worker's entry is what its name means, or may be."""
        record = self._registry.records.get(info.name)
        if record is not None and record.model == pool.key.model and record.digest:
            return info.digest == record.digest
        return not self._registry.hides(info)

    def _find(self, base: str, name: str, caller: Caller) -> Meant | None:
        found = [
            (pool, view.entries[name])
            for pool in self._pools(base, caller)
            for view in self._views(pool.key)
            if name in view.entries and self._usable(view.entries[name], pool)
        ]
        if not found:
            return None
        last = newest([info for _, info in found])
        pool = max((pool for pool, info in found if info is last), key=lambda pool: (pool.workers, pool.key.model))
        return Meant(pool=pool, adapter=AdapterRef(name=name, digest=last.digest))
