"""Where requests for an adapter may go, and which worker is told beforehand that they will come.

A worker that is told begins to read the adapter beside its steps, so that it is in memory by the time that a request has its turn. Told
is the first worker in the adapter's own order that should have it and does not: the one where a request that waits will go, or the next
that the traffic needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from router.adapters.names import Names
from router.adapters.view import AdapterRef
from router.fleet.adapters import prefetch_adapter
from router.fleet.link import WorkerLink
from router.fleet.stream import WorkerStream
from router.placement.adapters import to_prefetch
from router.placement.view import AdapterUse, WorkerView
from shared.types import AdapterLevel

MOST = 4  # adapters that a worker is told of at a time
AGAIN_SECONDS = 5.0  # after which it may be told of the same again

_IN_MEMORY = AdapterUse(0, 0, 0.0, False)


class Places:
    """One for all pools. `clock` is in seconds."""

    def __init__(self, names: Names, clock: Callable[[], float]):
        self._names = names
        self._clock = clock
        self._told: WeakKeyDictionary[WorkerStream, dict[AdapterRef, float]] = WeakKeyDictionary()

    def holders(self, links: Sequence[WorkerLink], adapter: AdapterRef | None) -> list[WorkerLink]:
        """See Names."""
        return self._names.holders(links, adapter)

    def expect(self, links: Sequence[WorkerLink], adapter: AdapterRef | None, sent_to: str = "") -> None:
        """A request for `adapter` waits for one of `links`, or has been sent to the worker `sent_to`, which reads it by itself."""
        if adapter is None or not adapter.digest:
            return
        able = {
            link.worker.info.worker_id: link
            for link in links
            if link.worker and link.worker.stream.adapters.has(adapter)
        }
        views = [view for link in able.values() if (view := _view(link, adapter, sent_to)) is not None]
        chosen = to_prefetch(views, adapter.digest) if views else None
        if chosen is not None:
            self._tell(able[chosen], adapter)

    def _tell(self, link: WorkerLink, adapter: AdapterRef) -> None:
        assert link.worker is not None
        stream, now = link.worker.stream, self._clock()
        told = self._told.setdefault(stream, {})
        for known in [known for known, at in told.items() if now - at >= AGAIN_SECONDS or _in_memory(stream, known)]:
            del told[known]
        if adapter not in told and len(told) < MOST:
            told[adapter] = now
            prefetch_adapter(link, adapter.name, adapter.digest)


def _in_memory(stream: WorkerStream, adapter: AdapterRef) -> bool:
    info = stream.adapters.entries.get(adapter.name)
    return info is not None and info.digest == adapter.digest and info.level is not AdapterLevel.SOURCE


def _view(link: WorkerLink, adapter: AdapterRef, sent_to: str) -> WorkerView | None:
    """As placement sees the worker, whether it has credit now or not. What is in its host memory is there already."""
    assert link.worker is not None
    view, stream = link.known_view(), link.worker.stream
    if view is None or adapter.digest in view.adapters:
        return view
    if _in_memory(stream, adapter) or view.worker_id == sent_to:
        return replace(view, adapters={**view.adapters, adapter.digest: _IN_MEMORY})
    return view
