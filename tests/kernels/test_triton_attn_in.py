"""Norm of queries and keys, rotary embedding and KV write in one launch, and the pool, in the interpreter, against the references."""

import pytest
import torch

from kernels.attn_in.reference import _head_norm
from kernels.rotary.reference import rotate
from kernels.rotary.table import RotarySpec, rotary_table
from kernels.weights import AttnIn, HeadNorm, Norm
from tests.kernels.pairwise import covering
from tests.kernels.triton_cases import DTYPES, assert_close, drawn, launcher, places

from kernels.attn_in.triton import Positions, turn_and_write  # isort: skip (after the interpreter is set up)
from kernels.kv.triton import GpuKVPool, write  # isort: skip

FACTORS = {
    "head_dim": (8, 64, 80, 96, 128, 256),
    "heads": ((2, 1), (4, 4), (7, 1), (8, 2), (8, 1)),
    "turned": (1.0, 0.5),  # share of a head that is turned
    "norm": ("none", "head", "all"),
    "block_size": (16, 32),
    "dtype": DTYPES,
    "tokens": (0, 1, 3),
    "padding": (False, True),  # whether the last token goes nowhere
}


def pool_of(kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int) -> GpuKVPool:
    pool = GpuKVPool.allocate(
        layers=2, kv_heads=kv_heads, head_dim=head_dim, blocks=5, dtype=dtype, device=torch.device("cpu"),
        block_size=block_size,
    )  # fmt: skip
    pool.fill(torch.nan)
    return pool


def read(pool: GpuKVPool, layer: int, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [places, kv_heads, head_dim]."""
    k, v = (one[at // pool.block_size, :, at % pool.block_size] for one in pool.layer(layer))
    return k, v


def written(pool: GpuKVPool) -> int:
    """Values that are not NaN any more, in all layers."""
    return sum(int(torch.isfinite(one).sum()) for layer in range(pool.layers) for one in pool.layer(layer))


def head_norm(kind: str, heads: int, kv_heads: int, head_dim: int) -> HeadNorm | None:
    if kind == "none":
        return None
    q, k = (1, 1) if kind == "head" else (heads, kv_heads)
    return HeadNorm(
        q=Norm(weight=drawn(q * head_dim, seed=4) + 1, eps=1e-5),
        k=Norm(weight=drawn(k * head_dim, seed=5) + 1, eps=1e-4),
    )


@pytest.mark.parametrize(",".join(FACTORS), covering(FACTORS))
def test_queries_are_turned_and_keys_and_values_written_as_by_the_reference(
    head_dim, heads, turned, norm, block_size, dtype, tokens, padding
) -> None:
    query_heads, kv_heads = heads
    weights = AttnIn(
        norm=None, qkv=None, heads=query_heads, kv_heads=kv_heads, head_dim=head_dim,
        head_norm=head_norm(norm, query_heads, kv_heads, head_dim),
    )  # fmt: skip
    table = rotary_table(RotarySpec(dim=int(head_dim * turned), theta=1e4), 100)
    position = torch.tensor([99, 0, 5][:tokens], dtype=torch.int32)
    place = torch.tensor([70, 2, 33][:tokens], dtype=torch.int32)
    if padding:
        place[-1:] = -1
    kept = place >= 0
    count = query_heads + 2 * kv_heads
    qkv = drawn(tokens, count * head_dim + 3).to(dtype)[:, : count * head_dim]
    pool = pool_of(kv_heads, head_dim, dtype, block_size)
    q = turn_and_write(launcher(), qkv, weights, table, Positions(position=position, place=place), pool, 1)

    assert q.dtype == dtype
    assert q.shape == (tokens, query_heads, head_dim)
    assert written(pool) == 2 * int(kept.sum()) * kv_heads * head_dim
    if not tokens:
        return
    split = qkv.reshape(tokens, count, head_dim)
    qk, v = split[:, : query_heads + kv_heads].float(), split[:, query_heads + kv_heads :]
    if weights.head_norm is not None:
        qk = _head_norm(qk, weights.head_norm, query_heads)
    qk = rotate(qk, table.cos[position.long()], table.sin[position.long()])
    key, value = read(pool, 1, place[kept].long())
    assert_close(q, qk[:, :query_heads], dtype)
    assert torch.equal(value, v[kept])
    if kept.any():
        assert_close(key, qk[kept, query_heads:], dtype)


@pytest.mark.parametrize(
    ("head_dim", "kv_heads", "block_size"), [(64, 1, 16), (80, 3, 32), (96, 2, 16), (128, 8, 32), (256, 2, 16)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_write_puts_each_token_in_its_place_and_touches_nothing_else(head_dim, kv_heads, block_size, dtype) -> None:
    pool = pool_of(kv_heads, head_dim, dtype, block_size)
    k, v = drawn(2, 4, kv_heads + 2, head_dim)[:, :, 1:-1]  # heads inside a wider tensor, and in float32
    at = torch.tensor([0, -1, 2 * block_size - 1, 4 * block_size], dtype=torch.int32)
    write(launcher(), pool, 1, at, k, v)
    kept = at >= 0
    key, value = read(pool, 1, at[kept].long())
    assert torch.equal(key, k[kept].to(dtype))
    assert torch.equal(value, v[kept].to(dtype))
    assert written(pool) == 2 * 3 * kv_heads * head_dim


def test_blocks_are_copied_exported_and_imported() -> None:
    pool, other = pool_of(2, 64, torch.bfloat16, 16), pool_of(2, 64, torch.bfloat16, 16)
    k, v = drawn(2, 32, 2, 64)
    write(launcher(), pool, 0, places(torch.tensor([0, 1]), 32, 16), k, v)
    pool.copy_blocks([0, 1], [1, 0])  # all read before any is written
    assert torch.equal(read(pool, 0, torch.arange(16))[0], k[16:].bfloat16())
    assert torch.equal(read(pool, 0, torch.arange(16, 32))[1], v[:16].bfloat16())
    other.import_([4, 2], pool.export([0, 1]))
    assert torch.equal(read(other, 0, torch.arange(64, 80))[0], k[16:].bfloat16())
    assert torch.equal(read(other, 0, torch.arange(32, 48))[1], v[:16].bfloat16())
    with pytest.raises(IndexError):
        pool.copy_blocks([0], [5])
