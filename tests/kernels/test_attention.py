"""Paged attention against a plain float64 formula, over odd shapes and a cache full of NaN."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernels.attention.reference import attention
from kernels.attention.spec import AttentionSpec
from kernels.kv import BLOCK, KVPool
from kernels.prepare.reference import Batch, prepare
from kernels.rotary.table import RotarySpec, rotary_table

MIXED = ((0, 5), (130, 1), (63, 1), (511, 2), (0, 1), (520, 1), (0, 70), (600, 37))
CASES = [  # head_dim, kv_heads, group, window, softcap, dtype: each value meets most of the others
    (64, 3, 1, None, None, torch.float32),
    (64, 1, 8, 70, None, torch.bfloat16),
    (64, 2, 7, None, 20.0, torch.float16),
    (80, 1, 4, 17, 20.0, torch.float32),
    (80, 2, 7, None, None, torch.bfloat16),
    (96, 2, 1, 1, None, torch.bfloat16),
    (96, 1, 8, None, 20.0, torch.float32),
    (128, 2, 4, 600, None, torch.float32),
    (128, 1, 7, 70, 5.0, torch.float32),
    (16, 4, 8, None, None, torch.float32),
]


@dataclass
class Sequences:
    """Random K and V of some sequences, written to shuffled blocks of a pool that held NaN."""

    pool: KVPool
    tables: torch.Tensor
    k: list[torch.Tensor]
    v: list[torch.Tensor]


def sequences(lengths: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype) -> Sequences:
    width = -(-max(lengths) // BLOCK)
    pool = KVPool.allocate(layers=1, kv_heads=kv_heads, head_dim=head_dim, blocks=width * len(lengths), dtype=dtype)
    pool.fill(torch.nan)
    draw = torch.Generator().manual_seed(head_dim)
    tables = torch.randperm(pool.blocks, generator=draw).view(len(lengths), width)
    made = Sequences(pool, tables, [], [])
    for row, length in enumerate(lengths):
        k, v = torch.randn(2, length, kv_heads, head_dim, generator=draw).to(dtype)
        at = torch.arange(length)
        pool.write(0, pool.index((tables[row][at // BLOCK] * BLOCK + at % BLOCK)[:, None]), k, v)
        made.k.append(k.double())
        made.v.append(v.double())
    return made


def run(q: torch.Tensor, chunks, data: Sequences, rows: list[int], spec: AttentionSpec) -> torch.Tensor:
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    rotary = rotary_table(RotarySpec(dim=spec.head_dim, theta=1e4), int((starts + lengths).max()))
    step = prepare(Batch(starts=starts, lengths=lengths, tables=data.tables[rows]), data.pool, (rotary,), (spec,))
    return attention(q, step, data.pool, 0, spec)


def expected(q: torch.Tensor, start: int, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """q [queries, heads, dim] at positions start.., by the textbook."""
    group = spec.heads // spec.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    at, own = torch.arange(len(k)), (start + torch.arange(len(q)))[:, None]
    seen = at <= own
    if spec.window is not None:
        seen &= own - at < spec.window
    p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", p, v).flatten(1)


@pytest.mark.parametrize(("head_dim", "kv_heads", "group", "window", "softcap", "dtype"), CASES)
def test_attention_equals_float64_whatever_the_mix(head_dim, kv_heads, group, window, softcap, dtype) -> None:
    spec = AttentionSpec(
        heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=0.11, window=window, softcap=softcap
    )
    data = sequences([start + length for start, length in MIXED], kv_heads, head_dim, dtype)
    q = torch.randn(sum(n for _, n in MIXED), spec.heads, head_dim, generator=torch.Generator().manual_seed(3))
    got, first = run(q, MIXED, data, list(range(len(MIXED))), spec), 0
    for row, (start, length) in enumerate(MIXED):
        own = slice(first, first + length)
        error = (got[own].double() - expected(q[own], start, data.k[row], data.v[row], spec)).abs().max()
        assert error < 5e-6, (row, start, length)
        first += length


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (90, None), (None, 3.0), (700, 3.0)])
@pytest.mark.parametrize(("head_dim", "kv_heads", "group"), [(64, 3, 3), (128, 1, 1), (80, 2, 7), (16, 2, 3)])
def test_a_querys_bits_do_not_depend_on_chunking_or_company(head_dim, kv_heads, group, window, softcap) -> None:
    spec = AttentionSpec(
        heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=0.1, window=window, softcap=softcap
    )
    length = 1100
    data = sequences([length, 700, 40], kv_heads, head_dim, torch.bfloat16)
    q = torch.randn(length, spec.heads, head_dim, generator=torch.Generator().manual_seed(3))
    whole = run(q, [(0, length)], data, [0], spec)
    for start, count in ((0, 7), (3, 1), (511, 1), (512, 1), (509, 6), (600, 64), (1023, 77), (1099, 1)):
        own = q[start : start + count]
        assert torch.equal(run(own, [(start, count)], data, [0], spec), whole[start : start + count]), (start, count)
        company = torch.cat((q[:30], own, q[:1], q[:9]))
        mixed = run(company, [(650, 30), (start, count), (39, 1), (0, 9)], data, [1, 0, 2, 2], spec)
        assert torch.equal(mixed[30 : 30 + count], whole[start : start + count]), (start, count)
