"""Applying the rotary embedding to heads."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, head_dim], cos and sin float32 [tokens, dim / 2] -> float32. Of the first `dim` values, pair i
    is (x[i], x[i + dim / 2]); the others are kept.
    """
    half = cos.shape[-1]
    x = x.float()
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
