"""What stays from step to step, a row a slot: the tokens on the device, the block tables on the host, which plans by them."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.kv import BLOCK
from worker.plan import SlotStart, TableWrite
from worker.sampling.sending import Send


class DeviceSlots:
    """`tokens` int64 [slots, max_model_len + 1] on the device, read and written by steps alone; `tables` int64 [slots, blocks]. One token
    past the longest sequence may be sampled while its end has not been seen yet.
    """

    def __init__(self, slots: int, max_model_len: int, device: torch.device):
        self.tokens = torch.zeros(slots, max_model_len + 1, dtype=torch.int64, device=device)
        self.tables = np.zeros((slots, -(-(max_model_len + 1) // BLOCK)), dtype=np.int64)

    def write_tables(self, writes: Sequence[TableWrite]) -> None:
        """Entries of the block tables, in order."""
        for write in writes:
            self.tables[write.slot, write.first : write.first + len(write.blocks)] = write.blocks

    def stage_start(self, starts: Sequence[SlotStart], send: Send) -> Callable[[], None]:
        """What writes the known tokens of sequences that take their slots."""
        if not starts:
            return _nothing
        values = send(np.concatenate([np.array(start.tokens, dtype=np.int64) for start in starts]))
        at = send(np.concatenate([self.at(start.slot, np.arange(len(start.tokens))) for start in starts]))

        def write() -> None:
            self.tokens.view(-1).index_copy_(0, at(), values())

        return write

    def stage_put(
        self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], send: Send
    ) -> Callable[[torch.Tensor], None]:
        """What appends the tokens int64 [rows] that were sampled."""
        at = send(self.at(slots, positions))

        def put(tokens: torch.Tensor) -> None:
            self.tokens.view(-1).index_copy_(0, at(), tokens)

        return put

    def at(self, slots: npt.NDArray[np.int64] | int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where tokens lie in the flat buffer."""
        return slots * self.tokens.shape[1] + positions


def _nothing() -> None:
    """Nobody starts."""
