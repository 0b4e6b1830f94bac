"""A sequence's block table, and what of it the runner has not been told."""

from collections.abc import Iterator

from worker.kvcache.pool import Holder
from worker.plan import TableWrite


class BlockTable:
    """Block `blocks[i]` holds KV of positions 16 i .. 16 i + 15. The first `registered` blocks stand in the prefix index."""

    __slots__ = ("_patches", "_told", "blocks", "holder", "registered")

    def __init__(self, holder: Holder, blocks: list[int], registered: int) -> None:
        self.holder = holder
        self.blocks = blocks
        self.registered = registered
        self._told = 0  # entries that the runner knows of
        self._patches: list[int] = []  # entries below `_told` that have changed since

    def replace(self, entry: int, block: int) -> None:
        """Entry `entry` names another block from the next plan on."""
        self.blocks[entry] = block
        if entry < self._told:
            self._patches.append(entry)

    def writes(self, slot: int) -> Iterator[TableWrite]:
        """What a plan must tell the runner before it computes with this table."""
        if self._patches:
            for entry in dict.fromkeys(self._patches):
                yield TableWrite(slot, entry, (self.blocks[entry],))
            self._patches.clear()
        if self._told < len(self.blocks):
            yield TableWrite(slot, self._told, tuple(self.blocks[self._told :]))
            self._told = len(self.blocks)
