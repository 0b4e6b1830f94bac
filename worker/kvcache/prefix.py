"""The prefix cache's index: chained hash of a full block of tokens -> the one (canonical) block that holds its KV."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from worker.kvcache.changes import PublishLog, is_published


class Entry(NamedTuple):
    """What is known of a cached block. `parent` is the hash of the block before it in its chain; None where `depth` is 0."""

    digest: bytes
    parent: bytes | None
    depth: int


class PrefixIndex:
    """Hash to block and back. A block stands here from when its content is final until it is evicted or flushed."""

    def __init__(self, changes: PublishLog) -> None:
        self._changes = changes
        self._blocks: dict[bytes, int] = {}
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._entries

    @property
    def entries(self) -> Mapping[int, Entry]:
        """Every cached block."""
        return self._entries

    def block_of(self, digest: bytes) -> int | None:
        """The block that holds `digest`'s content."""
        return self._blocks.get(digest)

    def find(self, digests: Iterable[bytes]) -> tuple[int, ...]:
        """The blocks of the longest cached beginning of the chain `digests`."""
        found = []
        for digest in digests:
            block = self._blocks.get(digest)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def register(self, block: int, entry: Entry) -> int:
        """The canonical block of the entry's content: `block` itself, or the one that had the same content before."""
        canonical = self._blocks.setdefault(entry.digest, block)
        if canonical == block and block not in self._entries:
            self._entries[block] = entry
            if is_published(entry.depth):
                self._changes.add(entry.digest)
        return canonical

    def forget(self, block: int) -> None:
        """`block` is cached no more."""
        entry = self._entries.pop(block)
        del self._blocks[entry.digest]
        if is_published(entry.depth):
            self._changes.remove(entry.digest)

    def check_integrity(self) -> None:
        """Raises AssertionError naming what does not hold."""
        assert len(self._blocks) == len(self._entries), "prefix index: hashes and blocks are not one to one"
        for block, entry in self._entries.items():
            assert self._blocks[entry.digest] == block, f"prefix index: block {block} is not found by its hash"
            orphan = entry.parent is not None and entry.parent not in self._blocks
            assert not orphan, f"prefix index: block {block} outlived the block before it"
        expected = {entry.digest for entry in self._entries.values() if is_published(entry.depth)}
        assert set(self._changes.published()) == expected, "prefix index: published hashes differ from cached ones"
