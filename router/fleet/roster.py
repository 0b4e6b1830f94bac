"""The links to whatever targets there are now: made as these appear, retired as they vanish.

A target that has vanished gets nothing new; its link is closed when nothing runs there any more, so that a worker which is taken out of a
list, or out of a service's addresses because it stops, ends its work in peace.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import Any

from prometheus_client import Gauge

from router.fleet.discovery import Source, Where
from router.fleet.link import LinkState, WorkerLink
from router.fleet.targets import Targets

AGAIN = 1.0  # seconds after which a source that failed by a fault of ours is followed again

log = logging.getLogger(__name__)


class Roster:
    """`make` gives the link of a target. `gone` is told of each link that is no more."""

    def __init__(
        self,
        where: Where,
        *,
        make: Callable[[str], WorkerLink],
        gone: Callable[[WorkerLink], None],
        clock: Callable[[], float],
        gauge: Gauge,
    ):
        self._where = where
        self._make = make
        self._gone = gone
        self._clock = clock
        self._gauge = gauge
        self._links: dict[str, WorkerLink] = {}
        self._states: dict[WorkerLink, LinkState] = {}
        self._told: dict[int, Targets] = {}  # by source
        self._tasks: set[asyncio.Task[None]] = set()
        for state in LinkState:
            gauge.labels(state.value).set(0)

    @property
    def links(self) -> Sequence[WorkerLink]:
        """Those of now, the retired among them."""
        return list(self._links.values())

    @property
    def complete(self) -> bool:
        """Whether every source has told of its targets."""
        return len(self._told) == len(self._where.sources)

    def start(self) -> None:
        """Link to what is known, and follow the rest."""
        self._meet(self._where.fixed)
        for number, source in enumerate(self._where.sources):
            self._spawn(self._follow(number, source))

    async def aclose(self) -> None:
        """Follow nothing any more, and cut every link."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.aclose() for link in self._links.values()))

    def note(self, link: WorkerLink) -> None:
        """Its state may have changed; a retired one may have become idle. Most calls change nothing, and cost nothing."""
        before = self._states.get(link)
        if before is None:  # it is no more
            return
        state = link.state(self._clock())
        if state is not before:
            self._states[link] = state
            self._gauge.labels(before.value).dec()
            self._gauge.labels(state.value).inc()
        if link.retired and link.idle:
            self._drop(link)

    async def _follow(self, number: int, source: Source) -> None:
        def tell(targets: Targets) -> None:
            self._told[number] = targets
            self._meet(tuple(dict.fromkeys(chain(self._where.fixed, *self._told.values()))))

        while True:
            try:
                await source.follow(tell)
            except Exception:
                log.exception("a source of workers' addresses broke")
                await asyncio.sleep(AGAIN)

    def _meet(self, targets: Targets) -> None:
        """These are all."""
        for target in targets:
            if target in self._links:
                self._links[target].retired = False
            else:
                self._add(target)
        for target in self._links.keys() - targets:
            self._links[target].retired = True
        for link in self.links:
            self.note(link)

    def _add(self, target: str) -> None:
        link = self._links[target] = self._make(target)
        self._states[link] = LinkState.DOWN
        self._gauge.labels(LinkState.DOWN.value).inc()
        link.start()

    def _drop(self, link: WorkerLink) -> None:
        log.info("%s is not among the workers any more", link.target)
        del self._links[link.target]
        self._gauge.labels(self._states.pop(link).value).dec()
        self._gone(link)
        self._spawn(link.aclose())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
