"""Adapters as the worker's edge sees them: one object for streams, unary calls and the engine. Runs on the event loop."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from shared.errors import OctavoError
from shared.types import AdapterInfo, TokenRequest
from worker.adapters.catalog import Held, info_of
from worker.adapters.errors import AdapterNotFound, AdapterVersionUnavailable
from worker.adapters.jobs import Urgency
from worker.adapters.library import EnginePort, Library
from worker.adapters.names import checked
from worker.adapters.orders import Orders
from worker.adapters.version import AdapterParts
from worker.adapters.watch import DirectoryWatch
from worker.events import AdapterStats

_LOG = logging.getLogger("octavo.worker")


class AdapterService:
    """`changed` is called with names of which something that is told has changed; what a name is, `info` tells (None: it is gone).

    `orders` goes to the scheduler.
    """

    def __init__(
        self, parts: AdapterParts, orders: Orders, engine: EnginePort, changed: Callable[[Iterable[str]], None]
    ):
        self.library = Library(parts, engine, changed)
        self.orders = orders
        self.slots = parts.slots
        orders.library, orders.engine = self.library, engine
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: frozenset[bytes] = frozenset()
        self._stats: Sequence[AdapterStats] = ()
        directory = parts.directory
        self._watch = None if directory is None else DirectoryWatch(self.library, directory, parts.scan_seconds)

    def start(self) -> None:
        """Begin to look at the directory."""
        if self._watch is not None:
            self._spawn(self._watch.run())

    async def looked(self) -> None:
        """Return when the directory's names are known, if there is a directory."""
        if self._watch is not None:
            await self._watch.looked.wait()

    async def close(self, timeout: float) -> bool:
        """End all of it; whether its threads ended in time."""
        for task in list(self._tasks):
            task.cancel()
        ended = await asyncio.gather(self.library.close(timeout), self.orders.close(timeout))
        return all(ended)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- what is told

    def infos(self) -> list[AdapterInfo]:
        """The whole catalog."""
        return self.library.catalog.infos()

    def info(self, name: str) -> AdapterInfo | None:
        """One name of it."""
        entry = self.library.catalog.entries.get(name)
        return None if entry is None else info_of(entry)

    def observe(self, stats: Sequence[AdapterStats]) -> None:
        """Which versions are in device slots now. The same object tells the same."""
        if stats is self._stats:
            return
        self._stats = stats
        ready = frozenset(one.digest for one in stats if one.ready)
        moved = ready ^ self._ready
        if not moved:
            return
        self._ready = ready
        for digest in moved:
            held = self.library.catalog.version(digest)
            if held is not None:
                held.ready = digest in ready
        self._changed(self.library.catalog.names_of(moved))

    # ---- requests

    def known(self, request: TokenRequest) -> TokenRequest | None:
        """The request with its version's digest, held from now on; None where that has to be found out first. Raises OctavoErrors."""
        if not request.adapter_digest and not request.adapter_name:
            return request
        held = self._at_hand(request)
        if held is None:
            return None
        self.library.catalog.hold(held)
        if held.version is None:
            self._fetch(held)
        return replace(request, adapter_digest=held.digest)

    def _at_hand(self, request: TokenRequest) -> Held | None:
        catalog = self.library.catalog
        if request.adapter_digest:
            held = catalog.version(request.adapter_digest)
            entry = catalog.entries.get(request.adapter_name)
            if held is None and entry is not None and entry.held is not None and not entry.stale:
                raise AdapterVersionUnavailable(f"adapter {entry.name!r} is here in another version")
            return held
        entry = catalog.entries.get(request.adapter_name)
        return None if entry is None or entry.stale else entry.held

    async def find_out(self, request: TokenRequest) -> None:
        """Return when `known` will know, at least for this turn of the event loop. Raises what is wrong with the name or the adapter."""
        if not request.adapter_name:
            raise AdapterVersionUnavailable("no version of this digest is here, and no name to find it by")
        try:
            held = await self.library.have(checked(request.adapter_name))
        except AdapterNotFound as error:
            if request.adapter_digest:  # whoever knows a version had it from somewhere: the name is not wrong
                raise AdapterVersionUnavailable(f"adapter {request.adapter_name!r} is not here") from error
            raise
        if request.adapter_digest and request.adapter_digest != held.digest:
            raise AdapterVersionUnavailable(f"adapter {request.adapter_name!r} is here in another version")

    def _fetch(self, held: Held) -> None:
        """Have its weights in host memory by the time that a slot is free for them."""
        for name in list(held.names)[:1]:
            self.prefetch(name, b"")

    def release(self, digest: bytes) -> None:
        """A request of this version has ended."""
        held = self.library.catalog.version(digest)
        if held is not None:
            self.library.catalog.release(held)

    def prefetch(self, name: str, digest: bytes) -> None:
        """A request may come. Where there is no such name, that is told as if it had gone."""
        held = self.library.catalog.version(digest) if digest else None
        if held is None or held.version is None:
            self._spawn(self._prefetch(name))

    async def _prefetch(self, name: str) -> None:
        try:
            await self.library.have(checked(name), Urgency.SOON)
        except AdapterNotFound:
            self._changed((name,))
        except OctavoError as error:
            _LOG.info("adapter %s cannot be had ahead of time: %s", name, error)
