"""Output projection, norm of its result, residual."""

import torch

from kernels.linear.reference import linear
from kernels.rms_norm.reference import rms_norm
from kernels.weights import AttnOut


def attn_out(x: torch.Tensor, attended: torch.Tensor, weights: AttnOut) -> torch.Tensor:
    """x float32 [tokens, hidden] + norm(proj(attended [tokens, heads * head_dim])) -> float32 [tokens, hidden]."""
    y = linear(attended, weights.proj)
    return x + (y if weights.after is None else rms_norm(y, weights.after))
