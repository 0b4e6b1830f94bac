"""How one stream's KV frames become what the index knows of its worker: a snapshot, then deltas in sequence; a gap asks one snapshot.

What comes between the request and the snapshot is older than the snapshot, and is passed over: so a gap never asks twice, and the cursor
never goes back within an epoch.
"""

from collections.abc import Callable

from router.placement.index import KvIndex, Member
from shared.types import KvDelta, KvSnapshot


class KvCursor:
    """One stream's place in its worker's changes. `request` sends a SnapshotRequest; `joined` is called once, after the first snapshot."""

    def __init__(self, index: KvIndex, member: Member, request: Callable[[], None], joined: Callable[[], None]):
        self.member = member
        self.resyncs = 0
        self._index = index
        self._request = request
        self._joined = joined
        self._waiting = True
        self._synced = False
        self._epoch = 0
        self._sequence = 0
        self._gathered: set[bytes] = set()
        request()

    @property
    def synced(self) -> bool:
        """Whether a whole view has come."""
        return self._synced

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and sequence of the last change taken."""
        return self._epoch, self._sequence

    def snapshot(self, piece: KvSnapshot) -> None:
        """A piece of a whole view; the last makes it the truth. Raises ValueError where the worker tells more than it can have."""
        if not self._waiting:
            return
        self._gathered.update(piece.hashes)
        if len(self._gathered) > self.member.capacity:
            raise ValueError(f"a snapshot of more hashes than the {self.member.capacity} blocks of the worker")
        if not piece.last:
            return
        hashes, self._gathered = self._gathered, set()
        self._epoch, self._sequence, self._waiting = piece.epoch, piece.sequence, False
        self._index.replace(self.member, hashes)
        if not self._synced:
            self._synced = True
            self._joined()

    def delta(self, delta: KvDelta) -> None:
        """The next changes, or a gap."""
        if self._waiting:
            return
        if (delta.epoch, delta.sequence) == (self._epoch, self._sequence + 1):
            self._sequence = delta.sequence
            self._index.change(self.member, delta.added, delta.removed)
        else:
            self._waiting = True
            self.resyncs += 1
            self._request()

    def close(self) -> None:
        """The stream is over: nothing is known of its worker any more. Idempotent."""
        self._index.leave(self.member)
