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
    numbers of chunks and tokens and of one `kind` that were staged with the same `longest` may use each other's `arrive`.
    """

    flat: npt.NDArray[np.int32]
    arrive: Callable[[torch.Tensor], Any]
    kind: tuple[int, ...] = ()


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
        adapters = batch.adapters
        named = (adapters.of_chunk,) if adapters is not None else ()
        parts = (batch.starts, batch.lengths, *named, batch.tables.numpy().reshape(-1))
        head = chunks * (2 + len(named))  # values before the tables

        def arrive(flat: torch.Tensor) -> Any:
            values = flat.numpy().astype(np.int64)
            starts, lengths, *names = values[:head].reshape(-1, chunks)
            again = replace(
                batch,
                starts=starts,
                lengths=lengths,
                tables=torch.from_numpy(values[head:].reshape(chunks, -1)),
                adapters=replace(adapters, of_chunk=names[0]) if adapters is not None else None,
            )
            return prepare(again, pool, rotaries, specs)

        kind = (1,) if adapters is not None else ()
        return Staged(flat=np.concatenate(parts).astype(np.int32), arrive=arrive, kind=kind)

    return stage
