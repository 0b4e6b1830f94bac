"""Final norm and head, for some rows alone."""

import torch

from kernels.linear.reference import linear_float32
from kernels.lora.reference import add
from kernels.prepare.reference import Prepared
from kernels.rms_norm.reference import rms_norm
from kernels.weights import Head


def logits(x: torch.Tensor, rows: torch.Tensor, weights: Head, step: Prepared | None = None) -> torch.Tensor:
    """x float32 [tokens, hidden], rows int64 [rows] -> float32 [rows, vocabulary]. With the adapters of `step`, if any."""
    normed = rms_norm(x.index_select(0, rows), weights.norm)
    raw = linear_float32(normed, weights.proj)
    if step is not None and step.adapted is not None:
        add(raw, normed, step.adapted, -1, "head", rows=rows)
    return raw if weights.softcap is None else raw.div_(weights.softcap).tanh_().mul_(weights.softcap)
