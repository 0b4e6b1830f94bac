"""Norm, gate and up projections, activation, down projection, norm of its result, residual.

Activations go through exp: torch's own silu and sigmoid round the last few elements of a buffer another way, so that a
row's bits would depend on where it stands.
"""

import math
from collections.abc import Callable

import torch

from kernels.linear.reference import linear
from kernels.rms_norm.reference import rms_norm
from kernels.weights import Activation, Mlp


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x)."""
    below = torch.neg(x).exp_().add_(1)
    return torch.div(x, below, out=below)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016), which is
    x * sigmoid(2u).
    """
    below = (x * x).mul_(0.044715).add_(1).mul_(x).mul_(-2 * math.sqrt(2 / math.pi)).exp_().add_(1)
    return torch.div(x, below, out=below)


def mlp(x: torch.Tensor, weights: Mlp) -> torch.Tensor:
    """x float32 [tokens, hidden] -> float32 [tokens, hidden]; the activation runs in float32."""
    normed = x if weights.norm is None else rms_norm(x, weights.norm)
    gate, up = linear(normed, weights.gate_up).float().chunk(2, dim=-1)
    y = linear(activation(weights.activation)(gate).mul_(up), weights.down)
    return x + (y if weights.after is None else rms_norm(y, weights.after))


def activation(name: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of that name. It may write to nothing but its result."""
    return {"silu": silu, "gelu_tanh": gelu_tanh}[name]
