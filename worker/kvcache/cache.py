"""The KV cache's bookkeeping: block tables over the pool and the prefix index.

`until` is the latest step in flight that names the blocks in question, or None: what is let go becomes available when it has retired.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.hashing import BLOCK_SIZE
from worker.events import KvChange
from worker.kvcache.changes import PublishLog
from worker.kvcache.pool import BlockPool, Holder
from worker.kvcache.prefix import Entry, PrefixIndex
from worker.kvcache.tables import BlockTable
from worker.plan import BlockCopy


def blocks_for(positions: int) -> int:
    """Blocks that hold the KV of so many positions."""
    return -(-positions // BLOCK_SIZE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """Cached blocks that a table can begin with; `idle` of them are available until someone takes them."""

    blocks: tuple[int, ...] = ()
    idle: int = 0


class Freed:
    """How many blocks would be referenced no more if the tables told so far closed."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._counts: Counter[int] = Counter()
        self.blocks = 0

    def close(self, table: BlockTable) -> None:
        """This one too."""
        for block in table.blocks:
            self._counts[block] += 1
            if self._counts[block] == self._pool.references(block):
                self.blocks += 1


class KvCache:
    """Opens, extends, forks and closes block tables. A table's blocks are written by its sequence alone while no other shares them."""

    def __init__(self, num_blocks: int, *, prefix_cache: bool) -> None:
        self._changes = PublishLog()
        self._index = PrefixIndex(self._changes)
        self._pool = BlockPool(num_blocks, self._index)
        self._prefix_cache = prefix_cache

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def available(self) -> int:
        """Blocks that can be taken now; cached ones that no one uses are among them."""
        return self._pool.available

    @property
    def soon(self) -> int:
        """Blocks that can be taken when the steps in flight have retired, besides those that can now."""
        return self._pool.held

    @property
    def cached(self) -> int:
        """Blocks in the prefix index."""
        return len(self._index)

    def probe(self, hashes: Sequence[bytes], length: int) -> Hits:
        """Hits of a sequence of `length` tokens. Its last token is always computed, so that there is something to sample from."""
        blocks = self._index.find(hashes[: (length - 1) // BLOCK_SIZE])
        return Hits(blocks=blocks, idle=sum(map(self._pool.is_idle, blocks)))

    def open(self, holder: Holder, hits: Hits, positions: int) -> BlockTable:
        """A table for `positions` positions that begins with the hits. Raises OutOfBlocks."""
        for block in hits.blocks:
            self._pool.share(block, holder)
        fresh = blocks_for(positions) - len(hits.blocks)
        blocks = [*hits.blocks, *(self._pool.allocate(holder) for _ in range(fresh))]
        return BlockTable(holder, blocks, registered=len(hits.blocks))

    def fork(self, table: BlockTable) -> BlockTable:
        """Another table with the same blocks."""
        for block in table.blocks:
            self._pool.share(block, table.holder)
        return BlockTable(table.holder, list(table.blocks), registered=table.registered)

    def sharers(self, table: BlockTable, entry: int) -> int:
        """How many tables have the block of this entry; 0 where the table has no such entry yet."""
        return self._pool.references(table.blocks[entry]) if entry < len(table.blocks) else 0

    def grow(self, table: BlockTable) -> None:
        """One block more. Raises OutOfBlocks."""
        table.blocks.append(self._pool.allocate(table.holder))

    def diverge(self, table: BlockTable, entry: int, step: int) -> BlockCopy:
        """A block of its own for this entry, to be filled by the returned copy in `step`. Raises OutOfBlocks."""
        source, target = table.blocks[entry], self._pool.allocate(table.holder)
        table.replace(entry, target)
        self._pool.release(source, step)
        return BlockCopy(source, target)

    def register(self, table: BlockTable, hashes: Sequence[bytes], until: int | None) -> None:
        """The content of the table's first `len(hashes)` blocks is final: cache them. Duplicates give way to the canonical block."""
        if not self._prefix_cache:
            return
        for depth in range(table.registered, len(hashes)):
            own = table.blocks[depth]
            entry = Entry(hashes[depth], hashes[depth - 1] if depth else None, depth)
            canonical = self._index.register(own, entry)
            if canonical != own:
                self._pool.share(canonical, table.holder)
                table.replace(depth, canonical)
                self._pool.release(own, until)
        table.registered = max(table.registered, len(hashes))

    def close(self, table: BlockTable, until: int | None) -> None:
        """The table is used no more. Its tail is let go first, so that it is evicted before what it builds on."""
        for block in reversed(table.blocks):
            self._pool.release(block, until)
        table.blocks.clear()

    def freed(self) -> "Freed":
        """A tally of what closing tables would free."""
        return Freed(self._pool)

    def retire(self, step: int) -> None:
        """`step` is in flight no more."""
        self._pool.retire(step)

    def flush(self) -> int:
        """Forget every cached block that no table has; returns how many became free."""
        return self._pool.flush()

    def take_changes(self) -> KvChange:
        """The net change of published hashes since the last call."""
        return self._changes.take()

    def published(self) -> tuple[bytes, ...]:
        """All published hashes."""
        return self._changes.published()

    def available_blocks(self) -> Iterable[int]:
        """The blocks that can be taken now."""
        return self._pool.available_blocks()

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """`tables` are all that are open. Raises AssertionError naming what does not hold."""
        self._pool.check_integrity(Counter(block for table in tables for block in table.blocks))
