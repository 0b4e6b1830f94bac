"""What stays on the device from step to step, a row a slot: the tokens and the block table."""

from collections.abc import Sequence

import torch

from kernels.kv import BLOCK
from worker.plan import SlotStart, TableWrite


class SlotState:
    """`tokens` int64 [slots, max_model_len + 1] and `tables` int64 [slots, blocks]. One token past the longest
    sequence may be sampled while its end has not been seen yet (depth 1).
    """

    def __init__(self, slots: int, max_model_len: int):
        self.tokens = torch.zeros(slots, max_model_len + 1, dtype=torch.int64)
        self.tables = torch.zeros(slots, -(-(max_model_len + 1) // BLOCK), dtype=torch.int64)

    @staticmethod
    def nbytes(slots: int, max_model_len: int) -> int:
        """Bytes that the state of so many slots takes."""
        return 8 * slots * (max_model_len + 1 + -(-(max_model_len + 1) // BLOCK))

    def start(self, starts: Sequence[SlotStart]) -> None:
        """Write the known tokens of sequences that take their slots."""
        for start in starts:
            self.tokens[start.slot, : len(start.tokens)] = torch.tensor(list(start.tokens), dtype=torch.int64)

    def write_tables(self, writes: Sequence[TableWrite]) -> None:
        """Entries of the block tables, all writes at once, the later of two winning."""
        entries = {(w.slot, w.first + i): block for w in writes for i, block in enumerate(w.blocks)}
        if entries:
            slots, columns = torch.tensor(list(entries), dtype=torch.int64).T
            self.tables[slots, columns] = torch.tensor(list(entries.values()), dtype=torch.int64)

    def put(self, slots: Sequence[int], positions: Sequence[int], tokens: torch.Tensor) -> None:
        """Append what was sampled."""
        self.tokens[torch.tensor(slots, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64)] = tokens
