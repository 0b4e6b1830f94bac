"""Attention, and a step of it made from chunks, against float64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kernels.attention.spec import AttentionSpec
from kernels.attention.triton import attention
from kernels.gpu.step import device_step, host_step
from kernels.kv.triton import GpuKVPool
from kernels.prepare.reference import Batch
from tests.bench.gpu.bed import Bed, Row, Tensor, close

Chunks = tuple[tuple[int, int], ...]  # first position, tokens
_MIXED: Chunks = ((0, 1), (130, 1), (520, 2), (0, 19))
_DECODE: Chunks = ((63, 1), (0, 1), (3000, 1))
_HEADS = ((64, 4, 1), (80, 2, 2), (96, 8, 2), (128, 7, 1), (256, 8, 1))  # head size, query heads, KV heads
_LIMITS = ((None, None), (70, None), (None, 20.0), (17, 5.0))  # window, soft cap


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A launch, `run()`, and what it looks at. Places that no sequence has are NaN where `poisoned`."""

    run: Callable[[], Tensor]
    q: Tensor
    pool: GpuKVPool
    tables: Tensor


def step(
    bed: Bed, spec: AttentionSpec, chunks: Chunks, *, fixed: bool, dtype: torch.dtype = torch.bfloat16,
    block_size: int = 16, poisoned: bool = False,
) -> Step:  # fmt: skip
    """Random queries over a random cache, whose blocks lie in no order."""
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    width = -(-int((starts + lengths).max()) // block_size)
    tables = torch.randperm(width * len(chunks)).view(len(chunks), width)
    pool = GpuKVPool(bed.drawn(1, 2, tables.numel(), spec.kv_heads, block_size, spec.head_dim, dtype=dtype))
    if poisoned:
        _poison(pool, tables, starts + lengths)
    launch, batch = bed.launch(fixed=fixed), Batch(starts=starts, lengths=lengths, tables=tables)
    host = host_step(launch, batch, pool, (spec,), fixed=fixed)
    sent = device_step(host, torch.from_numpy(host.flat()).to(bed.device), (), fixed=fixed).attention
    q = bed.drawn(int(lengths.sum()), spec.heads + 1, spec.head_dim, dtype=dtype, seed=1)[:, 1:]
    return Step(run=lambda: attention(launch, q, sent, pool, 0, spec, fixed=fixed), q=q, pool=pool, tables=tables)


def _poison(pool: GpuKVPool, tables: Tensor, ends: np.ndarray) -> None:
    for row, end in zip(tables.tolist(), ends.tolist(), strict=True):
        last, inside = divmod(end, pool.block_size)
        for one in pool.layer(0):
            if inside:
                one[row[last], :, inside:] = torch.nan
            one[row[last + bool(inside) :]] = torch.nan


def check(bed: Bed) -> Iterator[Row]:
    """Mixed and decode steps of all head sizes, dtypes, limits and block sizes, splits free and fixed."""
    yield from (_checked(bed, *case) for case in _cases(bed))


def _cases(bed: Bed) -> Iterator[tuple[AttentionSpec, Chunks, bool, torch.dtype, int]]:
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    number = 0
    for dim, heads, kv_heads in bed.size(_HEADS[2:4], _HEADS):
        for chunks in (_MIXED, bed.size(_DECODE[:2], _DECODE)):
            for fixed in (False, True):
                window, softcap = _LIMITS[number % 4]
                spec = AttentionSpec(
                    heads=heads, kv_heads=kv_heads, head_dim=dim, scale=0.11, window=window, softcap=softcap
                )
                yield spec, chunks, fixed, dtypes[number % 3], (16, 32)[number // 3 % 2]
                number += 1


def _checked(bed: Bed, spec: AttentionSpec, chunks: Chunks, fixed: bool, dtype: torch.dtype, block_size: int) -> Row:
    made = step(bed, spec, chunks, fixed=fixed, dtype=dtype, block_size=block_size, poisoned=True)
    name = f"{spec.heads}/{spec.kv_heads} x {spec.head_dim} {str(dtype)[6:]} blocks of {block_size}, "
    name += f"window {spec.window}, cap {spec.softcap}, {len(made.q)} tokens{', fixed' if fixed else ''}"
    return close("attention", name, made.run(), _expected(made, spec, chunks), dtype, factor=2)


def _expected(made: Step, spec: AttentionSpec, chunks: Chunks) -> Tensor:
    first, found = 0, []
    group = spec.heads // spec.kv_heads
    for row, (start, count) in enumerate(chunks):
        end, own = start + count, made.q[first : first + count].double()
        at = made.tables[row].to(own.device)
        k, v = (one[at].transpose(1, 2).flatten(0, 1)[:end].double() for one in made.pool.layer(0))
        scores = torch.einsum("qhd,khd->hqk", own, k.repeat_interleave(group, 1)) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        place = torch.arange(end, device=own.device)
        behind = start + torch.arange(count, device=own.device)[:, None] - place
        hidden = (behind < 0) | (behind >= (spec.window or end + 1))
        p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", p, v.repeat_interleave(group, 1)).flatten(1))
        first += count
    return torch.cat(found)
