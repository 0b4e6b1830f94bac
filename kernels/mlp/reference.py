"""Norm, gate and up projections, activation, down projection, residual."""

import torch

from kernels.linear.reference import linear
from kernels.rms_norm.reference import rms_norm
from kernels.weights import Mlp


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), through exp: torch's own silu and sigmoid round the last few elements of a buffer another way,
    so that a row's bits would depend on where it stands.
    """
    below = torch.neg(x).exp_().add_(1)
    return torch.div(x, below, out=below)


def mlp(x: torch.Tensor, weights: Mlp) -> torch.Tensor:
    """x float32 [tokens, hidden] -> float32 [tokens, hidden]; the activation runs in float32."""
    gate, up = linear(rms_norm(x, weights.norm), weights.gate_up).float().chunk(2, dim=-1)
    return x + linear({"silu": silu}[weights.activation](gate).mul_(up), weights.down)
