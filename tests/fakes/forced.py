"""Logits of given tokens' positions, from a runner's own model, cache and tables."""

import numpy as np
import torch

from kernels.kv import BLOCK
from kernels.prepare.reference import Batch
from worker.execution.build import ModelRunner

_ALL = 1 << 30


@torch.inference_mode()
def forced_logits(runner: ModelRunner, tokens: list[int], chunk: int = _ALL, *, last: int = _ALL) -> torch.Tensor:
    """float32 [last positions, vocabulary], computed `chunk` positions at a time in shuffled blocks."""
    order = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(2))
    table = order[: -(-len(tokens) // BLOCK)][None]
    first = max(0, len(tokens) - last)
    return torch.cat([_piece(runner, tokens, table, start, chunk, first) for start in range(0, len(tokens), chunk)])


def _piece(
    runner: ModelRunner, tokens: list[int], table: torch.Tensor, start: int, chunk: int, first: int
) -> torch.Tensor:
    piece = torch.tensor(tokens[start : start + chunk])
    batch = Batch(starts=np.array([start]), lengths=np.array([len(piece)]), tables=table)
    model, pool = runner._model, runner._pool
    step = runner._ops.prepare(batch, pool, runner._rotaries, model.spec.attentions)
    hidden = model.forward(piece, step, pool)
    wanted = torch.arange(min(max(0, first - start), len(piece)), len(piece))
    if not len(wanted):
        return hidden.new_empty(0, model.spec.vocab_size)
    return model.logits(hidden, wanted).clone()  # a backend's logits are valid until its next call
