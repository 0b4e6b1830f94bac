"""What waits to be written to a worker: aborts first, the rest in order.

An abort may not overtake its own Submit, which the worker would then run for nobody: a Submit not begun is taken out instead, and after
one of which some parts are out, the abort follows the last part.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from protos import worker_pb2 as pb


@dataclass(kw_only=True, slots=True, eq=False)
class _Entry:
    frames: deque[pb.Up]
    seq: int | None = None
    begun: bool = False


@dataclass(kw_only=True, slots=True, eq=False)
class Outbound:
    """Unbounded by itself: credits bound the submits in it."""

    _urgent: deque[pb.Up] = field(default_factory=deque)
    _entries: deque[_Entry] = field(default_factory=deque)
    _submits: dict[int, _Entry] = field(default_factory=dict)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def submits(self) -> int:
        """Of which something is to be written."""
        return len(self._submits)

    def put(self, frame: pb.Up) -> None:
        """A frame of its own, in order."""
        self._entries.append(_Entry(frames=deque([frame])))
        self._ready.set()

    def put_submit(self, seq: int, frames: Iterable[pb.Up]) -> None:
        """All frames of Submit `seq`, in order."""
        entry = self._submits[seq] = _Entry(frames=deque(frames), seq=seq)
        self._entries.append(entry)
        self._ready.set()

    def put_abort(self, seq: int, frame: pb.Up) -> None:
        """An Abort of handles of Submit `seq`, which is at least begun."""
        entry = self._submits.get(seq)
        (entry.frames if entry else self._urgent).append(frame)
        self._ready.set()

    def take_back(self, seq: int) -> bool:
        """Forget Submit `seq` if nothing of it is out; says whether."""
        entry = self._submits.get(seq)
        if entry is None or entry.begun:
            return False
        self._entries.remove(entry)
        del self._submits[seq]
        return True

    async def get(self) -> pb.Up:
        """The next frame to write."""
        while not (self._urgent or self._entries):
            self._ready.clear()
            await self._ready.wait()
        return self._urgent.popleft() if self._urgent else self._next()

    def _next(self) -> pb.Up:
        entry = self._entries[0]
        entry.begun = True
        frame = entry.frames.popleft()
        if not entry.frames:
            self._entries.popleft()
            if entry.seq is not None:
                del self._submits[entry.seq]
        return frame
