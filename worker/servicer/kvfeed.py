"""What one router is told of the prefix cache: changes, and whole views when it asks.

Changes that wait are merged, so that a slow router costs no more than the cache is large; nothing is numbered before it is sent.
Numbers begin at the worker's own count of changes, `position`: a router that comes back with what it knew from an earlier stream
then finds a gap, unless it has missed nothing.
"""

from collections import deque

from protos import worker_pb2 as pb
from shared.types import KvDelta, KvSnapshot
from shared.wire import worker as wire
from worker.engine.report import NetChange
from worker.events import KvChange


class KvFeed:
    """One stream's."""

    def __init__(self, epoch: int, position: int):
        self._epoch = epoch
        self._sequence = position
        self._waiting = NetChange()
        self._pieces: deque[KvSnapshot] = deque()

    def changed(self, change: KvChange) -> None:
        """The next changes, in order."""
        self._waiting.add(change)

    def snapshot(self, hashes: tuple[bytes, ...], position: int) -> None:
        """The whole view, as of all changes so far. It takes the place of an earlier one that is not out yet."""
        self._waiting.clear()
        self._sequence = position
        cuts = range(0, len(hashes) or 1, wire.SNAPSHOT_HASHES)
        pieces = [hashes[start : start + wire.SNAPSHOT_HASHES] for start in cuts]
        self._pieces = deque(
            KvSnapshot(epoch=self._epoch, sequence=position, hashes=piece, last=number == len(pieces))
            for number, piece in enumerate(pieces, 1)
        )

    def next(self) -> pb.Down | None:
        """The next frame: all of a snapshot before what has changed since."""
        if self._pieces:
            return wire.kv_snapshot_to_pb(self._pieces.popleft())
        if not self._waiting:
            return None
        change = self._waiting.take(wire.DELTA_HASHES)
        self._sequence += 1
        delta = KvDelta(epoch=self._epoch, sequence=self._sequence, added=change.added, removed=change.removed)
        return wire.kv_delta_to_pb(delta)
