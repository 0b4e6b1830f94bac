"""A step's inputs, worked out from its plan by arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.lora.slots import NONE, AdapterSlots, BatchAdapters
from kernels.prepare.reference import Batch, chunk_of_token, position_of_token
from worker.execution.state import SlotState
from worker.plan import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepInputs:
    """`tokens` int64 [tokens]; `rows` int64 [samples]: the token whose logits each sample draws from."""

    batch: Batch
    tokens: torch.Tensor
    rows: torch.Tensor


def step_inputs(plan: StepPlan, state: SlotState, adapters: AdapterSlots | None = None) -> StepInputs:
    """For a plan with chunks. ValueError where a chunk names an adapter and there are no `adapters`."""
    slots, starts, lengths, adapter = np.array(plan.chunks, dtype=np.int64).T.copy()
    slot_rows = torch.from_numpy(slots)
    batch = Batch(
        starts=starts,
        lengths=lengths,
        tables=state.tables.index_select(0, slot_rows),
        adapters=batch_adapters(adapter, adapters),
    )
    token_slots = slot_rows[torch.from_numpy(chunk_of_token(batch))]
    last = np.cumsum(lengths) - 1
    sampled = np.array([row.chunk for row in plan.samples], dtype=np.int64)
    return StepInputs(
        batch=batch,
        tokens=state.tokens[token_slots, torch.from_numpy(position_of_token(batch))],
        rows=torch.from_numpy(last[sampled]),
    )


def batch_adapters(of_chunk: npt.NDArray[np.int64], slots: AdapterSlots | None) -> BatchAdapters | None:
    """The adapter slot of each chunk, int64 [chunks]; None where none has one. ValueError where there are no slots."""
    if (of_chunk == NONE).all():
        return None
    if slots is None:
        raise ValueError("a chunk names an adapter, and the runner has no slots for adapters")
    return BatchAdapters(slots=slots, of_chunk=of_chunk)
