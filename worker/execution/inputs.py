"""A step's inputs, worked out from its plan by arrays."""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.prepare.reference import Batch, chunk_of_token, position_of_token
from worker.execution.state import SlotState
from worker.plan import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepInputs:
    """`tokens` int64 [tokens]; `rows` int64 [samples]: the token whose logits each sample draws from."""

    batch: Batch
    tokens: torch.Tensor
    rows: torch.Tensor


def step_inputs(plan: StepPlan, state: SlotState) -> StepInputs:
    """For a plan with chunks."""
    slots, starts, lengths, _adapters = np.array(plan.chunks, dtype=np.int64).T.copy()
    slot_rows = torch.from_numpy(slots)
    batch = Batch(starts=starts, lengths=lengths, tables=state.tables.index_select(0, slot_rows))
    token_slots = slot_rows[torch.from_numpy(chunk_of_token(batch))]
    last = np.cumsum(lengths) - 1
    sampled = np.array([row.chunk for row in plan.samples], dtype=np.int64)
    return StepInputs(
        batch=batch,
        tokens=state.tokens[token_slots, torch.from_numpy(position_of_token(batch))],
        rows=torch.from_numpy(last[sampled]),
    )
