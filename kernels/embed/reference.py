"""Embedding lookup. The residual stream is float32 from here to the head."""

import torch
import torch.nn.functional as F

from kernels.weights import Embedding


def embed(tokens: torch.Tensor, weights: Embedding) -> torch.Tensor:
    """tokens int64 [tokens] -> float32 [tokens, hidden]."""
    rows = F.embedding(tokens, weights.table).float()
    return rows if weights.scale == 1.0 else rows * weights.scale
