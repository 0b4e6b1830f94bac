"""RMSNorm (Zhang and Sennrich, 2019), all in float32."""

import torch
import torch.nn.functional as F

from kernels.weights import Norm


def rms_norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """x [..., hidden] -> float32 of the same shape."""
    return F.rms_norm(x.float(), (x.shape[-1],), norm.weight, norm.eps)
