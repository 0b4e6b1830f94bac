# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""From the QKV product to turned queries and the cache, in one launch: norm of queries and keys, rotary embedding, KV
write. A program has some heads of one token: queries first, then keys, then values.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, power_of_two, up
from kernels.gpu.tiles import Tile
from kernels.kv.triton import GpuKVPool, kv_base
from kernels.rotary.table import RotaryTable
from kernels.weights import AttnIn

_NONE, _HEAD, _ALL = 0, 1, 2  # what a norm runs over: nothing, each head, all heads together


@triton.jit
def _square_mean(row_ptr, first, width, BLOCK: tl.constexpr):
    """Mean of the squares of values first .. first + width - 1 of a row."""
    total = 0.0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + first + at, mask=at < width, other=0.0).to(tl.float32)
        total += tl.sum(x * x, 0)
    return total / width


@triton.jit
def _part(row_ptr, to, mask, dtype: tl.constexpr, value):
    tl.store(row_ptr + to, value.to(dtype), mask=mask)


@triton.jit
def qkv_kernel(
    x_ptr, q_ptr, key_ptr, value_ptr, cos_ptr, sin_ptr, positions_ptr, places_ptr, q_norm_ptr, k_norm_ptr,
    s_x, s_q, s_turn, s_block, s_head, s_place, q_eps, k_eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    some = is_q | is_k | is_v
    half = tl.arange(0, BLOCK_HALF)[None, :]
    turned = half < HALF
    row_ptr = x_ptr + token * s_x
    first = tl.load(row_ptr + head * DIM + half, mask=some & turned, other=0.0).to(tl.float32)
    second = tl.load(row_ptr + head * DIM + HALF + half, mask=some & turned, other=0.0).to(tl.float32)
    REST: tl.constexpr = DIM > 2 * HALF
    rest_at = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
    rest = tl.zeros((BLOCK_H, BLOCK_REST), tl.float32)
    if REST:
        rest = tl.load(row_ptr + head * DIM + rest_at, mask=some & (rest_at < DIM), other=0.0).to(tl.float32)
    if NORM:
        eps = tl.where(is_q, q_eps, k_eps)
        if NORM == 1:
            squares = tl.sum(first * first + second * second, 1)
            if REST:
                squares += tl.sum(rest * rest, 1)
            mean = squares[:, None] / DIM
            of = tl.zeros_like(head)
        else:
            q_mean = _square_mean(row_ptr, 0, HEADS * DIM, 1024)
            k_mean = _square_mean(row_ptr, HEADS * DIM, KV_HEADS * DIM, 1024)
            mean = tl.where(is_q, q_mean, k_mean)
            of = tl.where(is_q, head, head - HEADS) * DIM
        scale = tl.where(is_v, 1.0, 1.0 / tl.sqrt(mean + eps))
        w = tl.load(q_norm_ptr + of + half, mask=is_q & turned, other=1.0)
        first *= scale * tl.load(k_norm_ptr + of + half, mask=is_k & turned, other=1.0) * w
        w = tl.load(q_norm_ptr + of + HALF + half, mask=is_q & turned, other=1.0)
        second *= scale * tl.load(k_norm_ptr + of + HALF + half, mask=is_k & turned, other=1.0) * w
        if REST:
            w = tl.load(q_norm_ptr + of + rest_at, mask=is_q & (rest_at < DIM), other=1.0)
            rest *= scale * tl.load(k_norm_ptr + of + rest_at, mask=is_k & (rest_at < DIM), other=1.0) * w
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_ptr + position * s_turn + half, mask=turned, other=1.0)
    sin = tl.load(sin_ptr + position * s_turn + half, mask=turned, other=0.0)
    cos = tl.where(is_v, 1.0, cos)
    sin = tl.where(is_v, 0.0, sin)
    left = first * cos - second * sin
    right = second * cos + first * sin

    place = tl.load(places_ptr + token)
    Q: tl.constexpr = q_ptr.dtype.element_ty
    KV: tl.constexpr = key_ptr.dtype.element_ty
    to_q = token * s_q + head * DIM
    to_k = kv_base(place, head - HEADS, s_block, s_head, s_place, BLOCK_SIZE)
    to_v = kv_base(place, head - HEADS - KV_HEADS, s_block, s_head, s_place, BLOCK_SIZE)
    is_k &= place >= 0
    is_v &= place >= 0
    _part(q_ptr, to_q + half, is_q & turned, Q, left)
    _part(q_ptr, to_q + HALF + half, is_q & turned, Q, right)
    _part(key_ptr, to_k + half, is_k & turned, KV, left)
    _part(key_ptr, to_k + HALF + half, is_k & turned, KV, right)
    _part(value_ptr, to_v + half, is_v & turned, KV, left)
    _part(value_ptr, to_v + HALF + half, is_v & turned, KV, right)
    if REST:
        _part(q_ptr, to_q + rest_at, is_q & (rest_at < DIM), Q, rest)
        _part(key_ptr, to_k + rest_at, is_k & (rest_at < DIM), KV, rest)
        _part(value_ptr, to_v + rest_at, is_v & (rest_at < DIM), KV, rest)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Positions:
    """Of each token, int32 [tokens]: its `position`, and the `place` its K and V go to (-1: nowhere)."""

    position: torch.Tensor
    place: torch.Tensor


def turn_and_write(
    launch: Launcher, qkv: torch.Tensor, weights: AttnIn, turn: RotaryTable, at: Positions, pool: GpuKVPool, layer: int
) -> torch.Tensor:
    """qkv [tokens, (heads + 2 kv_heads) * head_dim], dense rows -> turned queries [tokens, heads, head_dim] in the pool's
    dtype; K and V go to `layer` of the pool. `turn` is the whole table.
    """
    heads, kv_heads, dim = weights.heads, weights.kv_heads, weights.head_dim
    q = torch.empty(len(qkv), heads, dim, dtype=pool.dtype, device=qkv.device)
    key, value = pool.layer(layer)
    half = turn.cos.shape[1]
    tile = _tile(launch, dim, half)
    norm = weights.head_norm
    over = _NONE if norm is None else _HEAD if norm.q.weight.numel() == dim else _ALL
    launch.run(
        qkv_kernel, (len(qkv), up(heads + 2 * kv_heads, tile["BLOCK_H"])),
        qkv, q, key, value, turn.cos, turn.sin, at.position, at.place,
        turn.cos if norm is None else norm.q.weight, turn.cos if norm is None else norm.k.weight,
        qkv.stride(0), q.stride(0), turn.cos.stride(0), *key.stride()[:3],
        0.0 if norm is None else norm.q.eps, 0.0 if norm is None else norm.k.eps,
        tile=tile, HEADS=heads, KV_HEADS=kv_heads, DIM=dim, HALF=half, NORM=over, BLOCK_SIZE=pool.block_size,
    )  # fmt: skip
    return q


def _tile(launch: Launcher, dim: int, half: int) -> Tile:
    tile = launch.tile("qkv", power_of_two(dim))
    rest = power_of_two(max(dim - 2 * half, 1))
    blocks = {**tile.blocks, "BLOCK_HALF": power_of_two(half), "BLOCK_REST": rest}
    return Tile(blocks=blocks, warps=tile.warps, stages=tile.stages)
