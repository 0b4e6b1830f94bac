"""Logits of every position of given tokens, from a runner's own model, cache and tables."""

import numpy as np
import torch

from kernels.kv import BLOCK
from kernels.prepare.reference import Batch
from worker.execution.build import ModelRunner


@torch.inference_mode()
def forced_logits(runner: ModelRunner, tokens: list[int], chunk: int = 1 << 30) -> torch.Tensor:
    """float32 [tokens, vocabulary], computed `chunk` positions at a time in shuffled blocks."""
    order = torch.randperm(runner.num_blocks, generator=torch.Generator().manual_seed(2))
    table = order[: -(-len(tokens) // BLOCK)][None]
    pieces = [_piece(runner, tokens, table, start, chunk) for start in range(0, len(tokens), chunk)]
    return torch.cat(pieces)


def _piece(runner: ModelRunner, tokens: list[int], table: torch.Tensor, start: int, chunk: int) -> torch.Tensor:
    piece = torch.tensor(tokens[start : start + chunk])
    batch = Batch(starts=np.array([start]), lengths=np.array([len(piece)]), tables=table)
    model, pool = runner._model, runner._pool
    step = runner._ops.prepare(batch, pool, runner._rotaries, model.spec.attentions)
    return model.logits(model.forward(piece, step, pool), torch.arange(len(piece)))
