"""Norm, QKV projection (with bias), norm of queries and keys, rotary embedding, KV write."""

import torch

from kernels.kv import KVPool
from kernels.linear.reference import linear
from kernels.lora.reference import Adapted, add
from kernels.prepare.reference import Prepared
from kernels.rms_norm.reference import rms_norm
from kernels.rotary.reference import rotate
from kernels.weights import AttnIn, HeadNorm, Norm


def attn_in(x: torch.Tensor, weights: AttnIn, step: Prepared, pool: KVPool, layer: int) -> torch.Tensor:
    """x float32 [tokens, hidden] -> rotated queries, float32 [tokens, heads, head_dim]; K and V go to `layer` of the
    pool.
    """
    normed = x if weights.norm is None else rms_norm(x, weights.norm)
    qkv = linear(normed, weights.qkv)
    if step.adapted is not None:
        qkv = _adapted(qkv, normed, weights, step.adapted, layer)
    qkv = qkv.view(x.shape[0], -1, weights.head_dim)
    turning = weights.heads + weights.kv_heads
    qk, v = qkv[:, :turning], qkv[:, turning:]
    if weights.head_norm is not None:
        qk = _head_norm(qk, weights.head_norm, weights.heads)
    turn = step.turns[weights.rotary]
    turned = rotate(qk, turn.cos, turn.sin)
    pool.write(layer, step.writes, turned[:, weights.heads :], v)
    return turned[:, : weights.heads]


def _adapted(qkv: torch.Tensor, x: torch.Tensor, weights: AttnIn, step: Adapted, layer: int) -> torch.Tensor:
    """With what the adapters add, float32."""
    qkv, width = qkv.float(), weights.kv_heads * weights.head_dim
    keys = weights.heads * weights.head_dim
    add(qkv, x, step, layer, "q")
    add(qkv, x, step, layer, "k", column=keys)
    add(qkv, x, step, layer, "v", column=keys + width)
    return qkv


def _head_norm(qk: torch.Tensor, norm: HeadNorm, heads: int) -> torch.Tensor:
    """Queries and keys, each normed by its own weight, float32."""
    return torch.cat((_normed(qk[:, :heads], norm.q), _normed(qk[:, heads:], norm.k)), dim=1)


def _normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """x [tokens, heads, head_dim], over as many values of its last axes as the weight has."""
    return rms_norm(x.reshape(x.shape[0], -1, norm.weight.numel()), norm).view(x.shape)
