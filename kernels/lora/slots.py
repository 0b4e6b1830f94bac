"""Where adapters lie that batches may name, and how a batch names them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernels.lora.weights import LoraShapes, LoraWeights

NONE = -1  # the slot of a sequence that runs on the base model alone


class AdapterSlots(Protocol):
    """A backend's places for adapters, numbered from 0. A slot may be filled and emptied from any thread while steps
    run, as long as no step that is planned or running names it. Steps that name an empty slot fail.
    """

    @property
    def slots(self) -> int:
        """How many there are."""

    @property
    def max_rank(self) -> int:
        """The largest rank of a module that fits."""

    @property
    def shapes(self) -> LoraShapes:
        """What adapters must fit."""

    def nbytes(self, weights: LoraWeights) -> int:
        """Bytes that the adapter will take in a slot."""

    def install(self, slot: int, weights: LoraWeights) -> None:
        """Convert and pack the adapter into the slot; what it held before goes. The caller may drop `weights` afterwards.
        LoraMisfit (kernels.lora.weights) where it does not fit; the slot is then as it was.
        """

    def clear(self, slot: int) -> None:
        """Empty the slot and give its memory back."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchAdapters:
    """A step's adapters: `of_chunk` int64 [chunks] is the slot of each chunk's sequence, or NONE."""

    slots: AdapterSlots
    of_chunk: npt.NDArray[np.int64]
