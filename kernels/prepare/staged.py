"""A step's preparation in two parts: what the host works out and sends, and what becomes of it on the device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.spec import AttentionSpec
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotaryTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Staged:
    """`flat` int32 [values] is to be sent; `arrive`, given it on the device, makes the prepared step that the ops take. Steps of equal
    numbers of chunks and tokens that were staged with the same `longest` may use each other's `arrive`.
    """

    flat: npt.NDArray[np.int32]
    arrive: Callable[[torch.Tensor], Any]


Prepare = Callable[[Batch, Any, tuple[RotaryTable, ...], tuple[AttentionSpec, ...]], Any]
Stage = Callable[[Batch, Any, tuple[RotaryTable, ...], tuple[AttentionSpec, ...], int | None], Staged]


def staged_by(prepare: Prepare) -> Stage:
    """For a backend on the host: the batch itself is sent, and prepared where it arrives. `longest`, the most positions that a chunk may
    end at, changes nothing for it.
    """

    def stage(
        batch: Batch,
        pool: Any,
        rotaries: tuple[RotaryTable, ...],
        specs: tuple[AttentionSpec, ...],
        longest: int | None = None,
    ) -> Staged:
        del longest
        chunks = len(batch.starts)
        parts = (batch.starts, batch.lengths, batch.tables.numpy().reshape(-1))

        def arrive(flat: torch.Tensor) -> Any:
            values = flat.numpy().astype(np.int64)
            tables = torch.from_numpy(values[2 * chunks :].reshape(chunks, -1))
            again = replace(batch, starts=values[:chunks], lengths=values[chunks : 2 * chunks], tables=tables)
            return prepare(again, pool, rotaries, specs)

        return Staged(flat=np.concatenate(parts).astype(np.int32), arrive=arrive)

    return stage
