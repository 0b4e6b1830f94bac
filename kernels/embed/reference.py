"""Embedding lookup. The residual stream is float32 from here to the head."""

import torch
import torch.nn.functional as F

from kernels.lora.reference import add_embedding
from kernels.prepare.reference import Prepared
from kernels.weights import Embedding


def embed(tokens: torch.Tensor, weights: Embedding, step: Prepared | None = None) -> torch.Tensor:
    """tokens int64 [tokens] -> float32 [tokens, hidden]. With the adapters of `step`, if any."""
    rows = F.embedding(tokens, weights.table).float()
    rows = rows if weights.scale == 1.0 else rows * weights.scale
    if step is not None and step.adapted is not None:
        add_embedding(rows, tokens, step.adapted, weights.scale)
    return rows
