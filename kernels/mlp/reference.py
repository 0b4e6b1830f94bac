"""Norm, gate and up projections, activation, down projection, norm of its result, residual.

Activations go through exp: torch's own silu and sigmoid round the last few elements of a buffer another way, so that a
row's bits would depend on where it stands.
"""

import math
from collections.abc import Callable

import torch

from kernels.linear.reference import linear
from kernels.lora.reference import add
from kernels.prepare.reference import Prepared
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


def mlp(x: torch.Tensor, weights: Mlp, step: Prepared | None = None, layer: int = 0) -> torch.Tensor:
    """x float32 [tokens, hidden] -> float32 [tokens, hidden]; the activation runs in float32. The adapters of `step`, if
    any, are those of `layer`.
    """
    adapted = None if step is None else step.adapted
    normed = x if weights.norm is None else rms_norm(x, weights.norm)
    both = linear(normed, weights.gate_up).float()
    gate, up = both.chunk(2, dim=-1)
    if adapted is not None:
        add(both, normed, adapted, layer, "gate")
        add(both, normed, adapted, layer, "up", column=gate.shape[1])
    inner = activation(weights.activation)(gate).mul_(up)
    y = linear(inner, weights.down)
    if adapted is not None:
        y = y.float()
        add(y, inner, adapted, layer, "down")
    return x + (y if weights.after is None else rms_norm(y, weights.after))


def activation(name: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of that name. It may write to nothing but its result."""
    return {"silu": silu, "gelu_tanh": gelu_tanh}[name]
