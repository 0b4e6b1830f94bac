"""The attention kernel, in the interpreter, against the reference: one launch for a mixed step, over caches full of NaN."""

import numpy as np
import pytest
import torch

from kernels.attention.reference import attention as reference
from kernels.attention.spec import AttentionSpec
from kernels.prepare.reference import Batch, prepare
from tests.kernels.pairwise import covering
from tests.kernels.triton_cases import DTYPES, Caches, assert_close, caches, launcher

from kernels.attention.triton import attention  # isort: skip (after the interpreter is set up)
from kernels.gpu.step import device_step, host_step  # isort: skip

MIXED = ((0, 1), (130, 1), (520, 2), (0, 19))
DECODE = ((63, 1), (0, 1), (530, 1))
FACTORS = {
    "head_dim": (8, 64, 80, 96, 128, 256),
    "heads": ((2, 2), (8, 2), (7, 1), (8, 1)),  # query heads, KV heads
    "block_size": (16, 32),
    "dtype": DTYPES,
    "limit": ((None, None), (70, None), (None, 20.0), (17, 5.0)),  # window, soft cap
    "chunks": (MIXED, DECODE),
    "fixed": (False, True),
    "empty": (False, True),  # whether a chunk has no tokens
}


def run(
    q: torch.Tensor,
    chunks,
    data: Caches,
    spec: AttentionSpec,
    rows: list[int],
    *,
    fixed: bool,
    left_out: int | None = None,
) -> torch.Tensor:
    """`left_out`: a chunk of one token of which the step knows no more when it runs, as where a recorded step has rows to spare."""
    launch = launcher(exact=fixed)
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    batch = Batch(starts=starts, lengths=lengths, tables=data.tables[rows])
    host = host_step(launch, batch, data.pool, (spec,), fixed=fixed)
    step = device_step(host, torch.from_numpy(host.flat()), (), fixed=fixed).attention
    if left_out is not None:
        step.chunks[left_out, 2] = 0
        step.chunk_of_token[step.chunk_of_token == left_out] = -1
    return attention(launch, q, step, data.pool, 1, spec, fixed=fixed)


def expected(q: torch.Tensor, chunks, data: Caches, spec: AttentionSpec, rows: list[int]) -> torch.Tensor:
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    batch = Batch(starts=starts, lengths=lengths, tables=data.reference_tables[rows])
    return reference(q, prepare(batch, data.reference, (), (spec,)), data.reference, 1, spec)


@pytest.mark.parametrize(",".join(FACTORS), covering(FACTORS))
def test_attention_equals_the_reference(head_dim, heads, block_size, dtype, limit, chunks, fixed, empty) -> None:
    """Where a chunk is empty: one without tokens from the beginning, and in a step of single tokens one that loses its own."""
    query_heads, kv_heads = heads
    window, softcap = limit
    spec = AttentionSpec(
        heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, scale=0.11, window=window, softcap=softcap
    )
    left_out = 1 if empty and chunks == DECODE else None
    if empty and chunks == MIXED:
        chunks = (*chunks[:2], (21, 0), *chunks[2:])
    data = caches([start + length for start, length in chunks], spec, dtype, block_size)
    count = sum(length for _, length in chunks)
    # Queries as a slice of something wider: rows apart by more than their own size.
    q = torch.randn(count, query_heads + 1, head_dim, generator=torch.Generator().manual_seed(3)).to(dtype)[:, 1:]
    got = run(q, chunks, data, spec, list(range(len(chunks))), fixed=fixed, left_out=left_out)
    assert got.dtype == dtype
    rows = [row for row, (_, length) in enumerate(chunks) if length]
    want = expected(q, [chunks[row] for row in rows], data, spec, rows)
    if left_out is not None:
        assert got[left_out].isnan().all(), "rows of padding are left as they are"
        got[left_out] = want[left_out]
    assert_close(got, want, dtype, factor=2)


LARGE_GROUPS = {
    "heads": ((17, 1), (40, 2), (64, 1), (71, 1), (130, 2)),  # 17, 20, 64, 71 and 65 query heads of a KV head
    "limit": ((None, None), (70, 20.0)),
    "chunks": (((0, 3), (130, 1), (70, 5)), DECODE),
    "fixed": (False, True),
}


@pytest.mark.parametrize(",".join(LARGE_GROUPS), covering(LARGE_GROUPS))
def test_a_kv_head_may_have_more_query_heads_than_a_block_has_rows(heads, limit, chunks, fixed) -> None:
    """Blocks of 16 rows for single tokens, of 64 else."""
    spec = AttentionSpec(heads=heads[0], kv_heads=heads[1], head_dim=32, scale=0.11, window=limit[0], softcap=limit[1])
    data = caches([start + length for start, length in chunks], spec, torch.bfloat16, 16)
    count = sum(length for _, length in chunks)
    q = torch.randn(count, heads[0], 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    rows = list(range(len(chunks)))
    got = run(q, chunks, data, spec, rows, fixed=fixed)
    assert_close(got, expected(q, chunks, data, spec, rows), torch.bfloat16, factor=2)


@pytest.mark.parametrize(
    ("head_dim", "heads", "window"), [(64, (2, 1), None), (128, (7, 1), 700), (80, (1, 1), None), (32, (71, 1), None)]
)
def test_with_fixed_splits_a_query_has_the_same_bits_in_every_step(head_dim, heads, window) -> None:
    spec = AttentionSpec(heads=heads[0], kv_heads=heads[1], head_dim=head_dim, scale=0.1, window=window)
    first, length = 1016, 1030
    data = caches([length, 70], spec, torch.bfloat16, 16)
    q = torch.randn(length, heads[0], head_dim, generator=torch.Generator().manual_seed(3)).bfloat16()
    whole = run(q[first:], [(first, length - first)], data, spec, [0], fixed=True)
    for start, count in ((first, 7), (1023, 1), (1024, 3), (length - 1, 1)):
        own = q[start : start + count]
        alone = run(own, [(start, count)], data, spec, [0], fixed=True)
        company = run(torch.cat((q[:3], own)), [(60, 3), (start, count)], data, spec, [1, 0], fixed=True)
        assert torch.equal(alone, whole[start - first :][:count]), (start, count)
        assert torch.equal(company[3:], alone), (start, count)
