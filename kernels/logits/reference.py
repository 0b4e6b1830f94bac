"""Final norm and head, for some rows alone."""

import torch

from kernels.linear.reference import linear_float32
from kernels.rms_norm.reference import rms_norm
from kernels.weights import Head


def logits(x: torch.Tensor, rows: torch.Tensor, weights: Head) -> torch.Tensor:
    """x float32 [tokens, hidden], rows int64 [rows] -> float32 [rows, vocabulary]."""
    raw = linear_float32(rms_norm(x.index_select(0, rows), weights.norm), weights.proj)
    return raw if weights.softcap is None else raw.div_(weights.softcap).tanh_().mul_(weights.softcap)
