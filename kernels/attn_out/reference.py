"""Output projection and residual."""

import torch

from kernels.linear.reference import linear
from kernels.weights import AttnOut


def attn_out(x: torch.Tensor, attended: torch.Tensor, weights: AttnOut) -> torch.Tensor:
    """x float32 [tokens, hidden] + proj(attended [tokens, heads * head_dim]) -> float32 [tokens, hidden]."""
    return x + linear(attended, weights.proj)
