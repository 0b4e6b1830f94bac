"""All layers, one after another, op by op."""

import torch

from kernels.attention.reference import attention
from kernels.attn_in.reference import attn_in
from kernels.attn_out.reference import attn_out
from kernels.kv import KVPool
from kernels.mlp.reference import mlp
from kernels.prepare.reference import Prepared
from kernels.weights import Layer


def layers(x: torch.Tensor, weights: tuple[Layer, ...], step: Prepared, pool: KVPool) -> torch.Tensor:
    """x float32 [tokens, hidden] -> the residual stream after the last layer, of the same shape. Writes KV."""
    for number, layer in enumerate(weights):
        q = attn_in(x, layer.attn_in, step, pool, number)
        x = attn_out(x, attention(q, step, pool, number, layer.attention), layer.attn_out, step, number)
        x = mlp(x, layer.mlp, step, number)
    return x
