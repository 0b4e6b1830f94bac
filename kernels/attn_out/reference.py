"""Output projection, norm of its result, residual."""

import torch

from kernels.linear.reference import linear
from kernels.lora.reference import add
from kernels.prepare.reference import Prepared
from kernels.rms_norm.reference import rms_norm
from kernels.weights import AttnOut


def attn_out(
    x: torch.Tensor, attended: torch.Tensor, weights: AttnOut, step: Prepared | None = None, layer: int = 0
) -> torch.Tensor:
    """x float32 [tokens, hidden] + norm(proj(attended [tokens, heads * head_dim])) -> float32 [tokens, hidden]. The
    adapters of `step`, if any, are those of `layer`.
    """
    y = linear(attended, weights.proj)
    if step is not None and step.adapted is not None:
        y = y.float()
        add(y, attended, step.adapted, layer, "o")
    return x + (y if weights.after is None else rms_norm(y, weights.after))
