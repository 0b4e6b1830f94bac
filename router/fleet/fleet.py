"""All workers, and the pools that the live ones form."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Gauge

from router.fleet.discovery import Where
from router.fleet.link import LinkContext, LinkState, WorkerLink
from router.fleet.roster import Roster
from router.fleet.settings import LinkSettings
from router.fleet.tokenizers import TokenizerStore
from router.placement.index import KvIndex
from router.service import ModelCard
from router.text.tokenizer import ModelText
from shared.errors import ModelNotFound, Unavailable
from shared.types import WorkerInfo

_NAME = 200  # characters of an unknown name that an error repeats: a status travels in headers, which are bounded


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolKey:
    """Workers that are one another's substitutes. Two revisions under one name are two pools."""

    model: str
    revision: str
    tokenizer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool as it lives now. `max_model_len` and `vocab_size` are what each of its workers serves."""

    key: PoolKey
    text: ModelText
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    workers: int


def no_such_model(name: str, *, param: str = "model") -> ModelNotFound:
    """The same for a name that is not served, and for one that the caller does not see. `param` is where it stands in the request."""
    return ModelNotFound(f"the model {name[:_NAME]!r} does not exist", param=param)


def pool_key(info: WorkerInfo) -> PoolKey:
    """The pool that a worker belongs to."""
    return PoolKey(model=info.model, revision=info.model_revision, tokenizer=info.tokenizer_digest)


def _no_listener(key: PoolKey) -> None:
    """Before a dispatcher listens, nothing waits."""


def _everything(name: str) -> bool:
    """No name is hidden."""
    return bool(name)


class Fleet:
    """Links to every target. `start` once; the listener hears of a pool whenever room in it may have opened or closed."""

    def __init__(
        self,
        where: Where,
        *,
        settings: LinkSettings,
        clock: Callable[[], float],
        cache: Path | None,
        workers_gauge: Gauge,
        kv_events: bool = False,
    ):
        self.index = KvIndex()
        store = TokenizerStore(cache)
        context = LinkContext(
            router_id=uuid.uuid4().hex,
            settings=settings,
            clock=clock,
            tokenizers=store,
            owner=self,
            index=self.index if kv_events else None,
        )
        self._roster = Roster(
            where,
            make=lambda target: WorkerLink(target, context),
            gone=self._gone,
            clock=clock,
            gauge=workers_gauge,
        )
        self._clock = clock
        self._settle_by = clock() + settings.settle_within
        self._settled = False
        self._listener: Callable[[PoolKey], None] = _no_listener
        self._created: dict[str, int] = {}  # served name -> Unix seconds when first seen
        self._keys: dict[WorkerLink, PoolKey] = {}  # the last known
        self._members: dict[PoolKey, dict[WorkerLink, None]] = {}  # the same, the other way round; none empty

    @property
    def links(self) -> Sequence[WorkerLink]:
        """To every target that there is now, or that still has work."""
        return self._roster.links

    def start(self, listener: Callable[[PoolKey], None]) -> None:
        """Begin to connect to all."""
        self._listener = listener
        self._roster.start()

    async def aclose(self) -> None:
        """Cut every stream."""
        await self._roster.aclose()

    def joined(self, link: WorkerLink) -> None:
        """See LinkOwner. A newcomer's turn count begins at the least of its pool, so that it is not sent everything at first."""
        if link.worker is None:
            return
        key = pool_key(link.worker.info)
        self._belongs(link, key)
        self._created.setdefault(key.model, int(time.time()))
        peers = [other.dispatched for other in self._live(key) if other is not link]
        link.dispatched = max(link.dispatched, min(peers, default=0))
        self.changed(link)

    def changed(self, link: WorkerLink) -> None:
        """See LinkOwner."""
        key = self._keys.get(link)
        self._roster.note(link)
        if key is not None:
            self._listener(key)

    def _gone(self, link: WorkerLink) -> None:
        self._belongs(link, None)

    def _belongs(self, link: WorkerLink, key: PoolKey | None) -> None:
        """From now on, to this pool."""
        before = self._keys.pop(link, None)
        if before is not None:
            del self._members[before][link]
            if not self._members[before]:
                del self._members[before]
        if key is not None:
            self._keys[link] = key
            self._members.setdefault(key, {})[link] = None

    def alone(self, link: WorkerLink) -> bool:
        """See LinkOwner."""
        now = self._clock()
        peers = self._live(self._keys[link]) if link in self._keys else []
        return not any(peer.state(now) is LinkState.READY for peer in peers if peer is not link)

    def candidates(self, key: PoolKey) -> list[WorkerLink]:
        """Workers of the pool for which a new request may wait."""
        now = self._clock()
        return [link for link in self._members.get(key, ()) if link.takes_work(now)]

    def serves(self, key: PoolKey) -> bool:
        """Whether there are any candidates."""
        now = self._clock()
        return any(link.takes_work(now) for link in self._members.get(key, ()))

    def ready(self) -> bool:
        """Whether some worker takes work now, and each that could be reached at first has told of its cache: a router that begins with a
        part of them would send all its work there."""
        now = self._clock()
        if not self._settled:
            known = self._roster.complete and all(link.settled for link in self.links)
            self._settled = known or now >= self._settle_by
        return self._settled and any(
            link.state(now) in (LinkState.READY, LinkState.BROKEN) and _reported(link) for link in self.links
        )

    def resolve(self, model: str, sees: Callable[[str], bool] = _everything) -> Pool:
        """The pool of a served name; of several, that with the most workers. An empty name means the only model. A name that is not to be
        seen does not exist.

        Raises ModelNotFound, or Unavailable where no worker of that model takes work now.
        """
        pools = [pool for pool in self.pools() if model in ("", pool.key.model) and sees(pool.key.model)]
        if not model and len({pool.key.model for pool in pools}) > 1:
            raise ModelNotFound("several models are served: name one", param="model")
        if pools:
            return max(pools, key=lambda pool: (pool.workers, pool.key.revision))
        if not self._created or not model or (model in self._created and sees(model)):
            raise Unavailable(f"no worker serves {model[:_NAME] or 'a model'} now", retry_after=1)
        raise no_such_model(model)

    def cards(self) -> list[ModelCard]:
        """Every served name with a worker that takes work, sorted."""
        cards: dict[str, ModelCard] = {}
        for pool in sorted(self.pools(), key=lambda pool: pool.key.model):
            name, other = pool.key.model, cards.get(pool.key.model)
            cards[name] = ModelCard(
                id=name,
                created=self._created[name],
                max_model_len=min(pool.max_model_len, other.max_model_len) if other else pool.max_model_len,
                workers=pool.workers + (other.workers if other else 0),
                eos_token_ids=pool.eos_token_ids,
            )
        return list(cards.values())

    def _live(self, key: PoolKey) -> list[WorkerLink]:
        return [link for link in self._members.get(key, ()) if link.worker is not None]

    def names(self) -> frozenset[str]:
        """Every name that was ever served."""
        return frozenset(self._created)

    def pools(self) -> list[Pool]:
        """Those with a worker that takes work."""
        return [pool for pool in map(self._pool, self._members) if pool is not None]

    def _pool(self, key: PoolKey) -> Pool | None:
        workers = [link.worker for link in self.candidates(key) if link.worker is not None]
        if not workers:
            return None
        return Pool(
            key=key,
            text=workers[0].text,
            max_model_len=min(worker.info.max_model_len for worker in workers),
            vocab_size=min(worker.info.vocab_size for worker in workers),
            eos_token_ids=workers[0].info.eos_token_ids,
            workers=len(workers),
        )


def _reported(link: WorkerLink) -> bool:
    return link.worker is not None and link.worker.stream.liveness.load is not None
