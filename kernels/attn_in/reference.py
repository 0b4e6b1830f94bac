"""Norm, QKV projection (with bias), rotary embedding, KV write."""

import torch

from kernels.kv import KVPool
from kernels.linear.reference import linear
from kernels.prepare.reference import Prepared
from kernels.rms_norm.reference import rms_norm
from kernels.rotary.reference import rotate
from kernels.weights import AttnIn


def attn_in(x: torch.Tensor, weights: AttnIn, step: Prepared, pool: KVPool, layer: int) -> torch.Tensor:
    """x float32 [tokens, hidden] -> rotated queries, float32 [tokens, heads, head_dim]; K and V go to `layer` of the
    pool.
    """
    qkv = linear(rms_norm(x, weights.norm), weights.qkv).view(x.shape[0], -1, weights.head_dim)
    turned = rotate(qkv[:, : weights.heads + weights.kv_heads], step.cos, step.sin)
    pool.write(layer, step.writes, turned[:, weights.heads :], qkv[:, weights.heads + weights.kv_heads :])
    return turned[:, : weights.heads]
