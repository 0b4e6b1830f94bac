"""The published part of the prefix cache, which routers place by: every fourth hash of a chain, and what changed since last told."""

from shared.hashing import PUBLISH_EVERY
from worker.events import KvChange


def is_published(depth: int) -> bool:
    """Whether block number `depth` of a chain, from 0, is one that routers hear of."""
    return (depth + 1) % PUBLISH_EVERY == 0


class PublishLog:
    """Published hashes, and the net change since the last `take`. Adding what is there, or removing what is not, is an error."""

    def __init__(self) -> None:
        self._published: dict[bytes, None] = {}
        self._pending: dict[bytes, bool] = {}  # hash -> it appeared (True) or went

    def add(self, digest: bytes) -> None:
        """`digest` is cached from now on."""
        if digest in self._published:
            raise KeyError(digest.hex())
        self._published[digest] = None
        self._note(digest, appeared=True)

    def remove(self, digest: bytes) -> None:
        """`digest` is cached no more."""
        del self._published[digest]
        self._note(digest, appeared=False)

    def _note(self, digest: bytes, *, appeared: bool) -> None:
        if digest in self._pending:  # then with the opposite sense: both together are no change
            del self._pending[digest]
        else:
            self._pending[digest] = appeared

    def take(self) -> KvChange:
        """The net change since the last call."""
        if not self._pending:
            return KvChange()
        added = tuple(digest for digest, appeared in self._pending.items() if appeared)
        removed = tuple(digest for digest, appeared in self._pending.items() if not appeared)
        self._pending = {}
        return KvChange(added=added, removed=removed)

    def published(self) -> tuple[bytes, ...]:
        """All hashes that are published now, whether already told by `take` or not."""
        return tuple(self._published)
