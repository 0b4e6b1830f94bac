"""The pool of KV blocks: who refers to a block, which steps in flight still name it, which may be taken.

A block is in one of four states. *Free*: without content. *Idle*: no one refers to it, and it is cached. *Referenced*: it stands in at
least one block table. *Held*: no table has it any more, but a step in flight names it; it becomes free or idle when that step retires.
Free and idle blocks are *available*; idle ones go in the order in which they became idle, so whoever releases a chain releases its tail
first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.kvcache.prefix import PrefixIndex


class OutOfBlocks(Exception):
    """No block is available. The scheduler asks before it allocates, so that this is a fault in it."""


@dataclass(kw_only=True, slots=True, eq=False)
class Holder:
    """Counts the referenced blocks on one account. A block that several refer to is on the account of the first."""

    blocks: int = 0


class BlockPool:
    """Reference counts over blocks 0 .. num_blocks-1. Every operation is O(1) a block."""

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.num_blocks = num_blocks
        self._index = index
        self._references = [0] * num_blocks
        self._holders: list[Holder | None] = [None] * num_blocks
        self._holds = [0] * num_blocks  # steps in flight that name the block, as far as anyone released it under them
        self._retiring: dict[int, list[int]] = {}  # step -> blocks, one entry a hold
        self._free = list(reversed(range(num_blocks)))
        self._idle: OrderedDict[int, None] = OrderedDict()  # first to be evicted first
        self._held = 0  # blocks in the state held

    @property
    def available(self) -> int:
        """Blocks that `allocate` could give now."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Blocks that will be available when the steps in flight have retired."""
        return self._held

    @property
    def referenced(self) -> int:
        """Blocks that stand in some table."""
        return self.num_blocks - self.available - self._held

    def references(self, block: int) -> int:
        """How many tables have `block`."""
        return self._references[block]

    def is_idle(self, block: int) -> bool:
        """Whether `block` is cached and may be evicted."""
        return block in self._idle

    def available_blocks(self) -> Iterable[int]:
        """The blocks that may be taken."""
        return (*self._free, *self._idle)

    def allocate(self, holder: Holder) -> int:
        """A block with one reference and no content of worth. Raises OutOfBlocks."""
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._index.forget(block)
        else:
            raise OutOfBlocks(f"{self.num_blocks} blocks, all in use")
        self._take(block, holder)
        return block

    def share(self, block: int, holder: Holder) -> None:
        """One reference more to a block with content."""
        if self._references[block]:
            self._references[block] += 1
            return
        if self._holds[block]:
            self._held -= 1
        else:
            del self._idle[block]
        self._take(block, holder)

    def _take(self, block: int, holder: Holder) -> None:
        self._references[block] = 1
        self._holders[block] = holder
        holder.blocks += 1

    def release(self, block: int, until: int | None) -> None:
        """One reference less; step `until`, where there is one, is in flight and names the block."""
        if until is not None:
            self._holds[block] += 1
            self._retiring.setdefault(until, []).append(block)
        self._references[block] -= 1
        if self._references[block]:
            return
        holder = self._holders[block]
        assert holder is not None
        holder.blocks -= 1
        self._holders[block] = None
        if self._holds[block]:
            self._held += 1
        else:
            self._settle(block)

    def retire(self, step: int) -> None:
        """`step` is in flight no more."""
        for block in self._retiring.pop(step, ()):
            self._holds[block] -= 1
            if not self._holds[block] and not self._references[block]:
                self._held -= 1
                self._settle(block)

    def _settle(self, block: int) -> None:
        if block in self._index:
            self._idle[block] = None
        else:
            self._free.append(block)

    def flush(self) -> int:
        """Forget the content of every block that no table has. Returns the number of idle blocks that became free."""
        unused = [block for block in self._index.entries if not self._references[block]]
        for block in unused:
            self._index.forget(block)
        flushed = len(self._idle)
        self._free.extend(self._idle)
        self._idle.clear()
        return flushed

    def check_integrity(self, tables: Mapping[int, int]) -> None:
        """`tables` is how often each block stands in a table. Raises AssertionError naming what does not hold."""
        counted = [tables.get(block, 0) for block in range(self.num_blocks)]
        wrong = [block for block in range(self.num_blocks) if counted[block] != self._references[block]]
        assert not wrong, f"pool: references of blocks {wrong} differ from the tables"
        holds = Counter(block for blocks in self._retiring.values() for block in blocks)
        assert all(holds[block] == count for block, count in enumerate(self._holds)), "pool: holds without a step"
        places = Counter([*self._free, *self._idle])
        for block in range(self.num_blocks):
            used = self._references[block] > 0 or self._holds[block] > 0
            assert places[block] == (0 if used else 1), f"pool: block {block} is available {places[block]} times"
            assert (self._holders[block] is None) == (self._references[block] == 0), f"pool: account of block {block}"
        assert all((block in self._index) == (block in self._idle) for block in places), "pool: idle is not cached"
        held = sum(1 for block in range(self.num_blocks) if self._holds[block] and not self._references[block])
        assert held == self._held, f"pool: {held} blocks are held, {self._held} counted"
        owned = Counter(id(holder) for holder in self._holders if holder is not None)
        holders = {id(holder): holder for holder in self._holders if holder is not None}
        assert all(holders[key].blocks == count for key, count in owned.items()), "pool: an account's count is wrong"
        self._index.check_integrity()
