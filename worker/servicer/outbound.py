"""What waits to be written to a router: what is urgent, then steps in order, then Load, then adapters, then KV.

Load, adapter and KV frames are made when their turn comes, so that they tell the newest; a KV frame goes only where nothing else waits,
so that a snapshot's pieces lie between steps. Steps that gathered while a frame was written go out as one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

from protos import worker_pb2 as pb
from worker.servicer.bundle import MOST, Bundle, frames_of, run_length


class Outbound:
    """`undelivered` counts the bundles of which no frame is out."""

    def __init__(
        self,
        *,
        make_load: Callable[[], pb.Down],
        next_kv: Callable[[], pb.Down | None],
        next_adapters: Callable[[], pb.Down | None] = lambda: None,
    ):
        self._make_load = make_load
        self._next_adapters = next_adapters
        self._next_kv = next_kv
        self._urgent: deque[pb.Down] = deque()
        self._bundles: deque[Bundle] = deque()
        self._frames: deque[pb.Down] = deque()  # of bundles of which some are out
        self._load_due = False
        self._closed = False
        self._ready = asyncio.Event()

    @property
    def undelivered(self) -> int:
        """See the class."""
        return len(self._bundles)

    def put_urgent(self, frame: pb.Down) -> None:
        """Ahead of everything but other urgent ones."""
        self._urgent.append(frame)
        self._ready.set()

    def put(self, bundle: Bundle) -> None:
        """In order."""
        self._bundles.append(bundle)
        self._ready.set()

    def want_load(self) -> None:
        """A Load, as soon as nothing more important waits."""
        self._load_due = True
        self._ready.set()

    def want_kv(self) -> None:
        """There may be a KV frame."""
        self._ready.set()

    def want_adapters(self) -> None:
        """There may be an adapter frame."""
        self._ready.set()

    def close(self) -> None:
        """`get` gives None once all that is urgent and all bundles are out."""
        self._closed = True
        self._ready.set()

    def abandon(self) -> None:
        """`get` gives None from now on."""
        self._urgent.clear()
        self._bundles.clear()
        self._frames.clear()
        self.close()

    async def get(self) -> pb.Down | None:
        """The next frame to write; None at the end."""
        while (frame := self._next()) is None and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        return frame

    def _next(self) -> pb.Down | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._bundles and not self._frames:
            self._frames.extend(frames_of(self._cut()))
        if self._frames:
            return self._frames.popleft()
        if self._closed:
            return None
        if self._load_due:
            self._load_due = False
            return self._make_load()
        return self._next_adapters() or self._next_kv()

    def _cut(self) -> list[Bundle]:
        count = run_length(list(islice(self._bundles, MOST)))
        return [self._bundles.popleft() for _ in range(count)]
