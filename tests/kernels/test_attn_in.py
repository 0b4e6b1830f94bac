"""Norms, projection, rotation and KV write of the reference, against float64, in every combination that a family has."""

import numpy as np
import pytest
import torch

from kernels.attention.spec import AttentionSpec
from kernels.attn_in.reference import attn_in
from kernels.attn_out.reference import attn_out
from kernels.kv import BLOCK, KVPool
from kernels.linear import pack
from kernels.prepare.reference import Batch, Prepared, prepare
from kernels.rotary.table import RotarySpec, RotaryTable, rotary_table
from kernels.weights import AttnIn, AttnOut, HeadNorm, Norm

HIDDEN, POSITIONS = 75, 96
CASES = [  # heads, kv_heads, head_dim, rotated, normed before, values that a head norm covers, bias
    (6, 2, 16, 16, True, None, False),
    (3, 1, 80, 80, True, None, True),
    (3, 3, 96, 72, True, None, False),
    (4, 2, 20, 20, True, "head", False),
    (2, 1, 256, 256, True, "head", True),
    (5, 5, 18, 18, False, "projection", False),
    (6, 2, 16, 12, False, "projection", True),
]


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(size: int, seed: int = 9) -> Norm:
    return Norm(weight=drawn(size, seed=seed) + 1, eps=1e-5)


def exact_norm(x: torch.Tensor, weights: Norm | None) -> torch.Tensor:
    if weights is None:
        return x.double()
    x = x.double().unflatten(-1, (-1, weights.weight.numel()))
    return (x / (x.pow(2).mean(-1, keepdim=True) + weights.eps).sqrt() * weights.weight.double()).flatten(-2)


def exact_turn(x: torch.Tensor, table: RotaryTable, positions: torch.Tensor) -> torch.Tensor:
    """x float64 [tokens, heads, head_dim]: pairs as complex numbers times e^(i angle)."""
    half = table.cos.shape[1]
    turn = torch.complex(table.cos[positions].double(), table.sin[positions].double())[:, None]
    pairs = torch.complex(x[..., :half].contiguous(), x[..., half : 2 * half].contiguous()) * turn
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :]), -1)


def prepared(chunks: list[tuple[int, int]], tables: torch.Tensor, rotaries, spec, pool: KVPool) -> Prepared:
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    return prepare(Batch(starts=starts, lengths=lengths, tables=tables), pool, rotaries, (spec,))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "rotated", "before", "over", "bias"), CASES)
def test_queries_keys_and_values_equal_float64_and_their_bits_do_not_depend_on_company(
    heads, kv_heads, head_dim, rotated, before, over, bias
) -> None:
    spec = AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=1.0)
    rows = (heads + 2 * kv_heads) * head_dim
    weight, offsets = drawn(rows, HIDDEN, seed=1) / 8, drawn(rows, seed=2) if bias else None
    sizes = {"head": (head_dim, head_dim), "projection": (heads * head_dim, kv_heads * head_dim), None: None}[over]
    weights = AttnIn(
        norm=norm(HIDDEN) if before else None,
        qkv=pack(weight, bias=offsets),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        head_norm=sizes and HeadNorm(q=norm(sizes[0], 5), k=norm(sizes[1], 6)),
        rotary=1,
    )
    tables = (
        rotary_table(RotarySpec(dim=head_dim, theta=3.0), POSITIONS),
        rotary_table(RotarySpec(dim=rotated, theta=1e4), POSITIONS),
    )
    pool = KVPool.allocate(layers=1, kv_heads=kv_heads, head_dim=head_dim, blocks=12, dtype=torch.float32)
    blocks = torch.tensor([[3, 0, 5, 7, 2, 9], [1, 8, 4, 6, 10, 11]])
    x = drawn(70, HIDDEN, seed=3)
    chunks = [(20, 67), (40, 3)]
    q = attn_in(x, weights, prepared(chunks, blocks, tables, spec, pool), pool, 0)
    positions = torch.cat([torch.arange(start, start + length) for start, length in chunks])
    parts = (exact_norm(x, weights.norm) @ weight.double().T + (0 if offsets is None else offsets.double())).split(
        (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), -1
    )
    normed = (
        parts
        if weights.head_norm is None
        else (exact_norm(parts[0], weights.head_norm.q), exact_norm(parts[1], weights.head_norm.k), parts[2])
    )
    turned = [exact_turn(part.unflatten(-1, (-1, head_dim)), tables[1], positions) for part in normed[:2]]
    held = pool.read(0, pool.index(written(chunks, blocks)[:, None]), 1)[:, :, :, 0]
    for got, expected in ((q, turned[0]), (held[0], turned[1]), (held[1], parts[2].unflatten(-1, (-1, head_dim)))):
        assert (got.double() - expected).abs().max() < 2e-5
    for first, count in ((0, 1), (66, 1), (5, 9), (1, 60)):
        alone = prepared([(20 + first, count)], blocks[:1], tables, spec, pool)
        assert torch.equal(attn_in(x[first : first + count], weights, alone, pool, 0), q[first : first + count])


def written(chunks: list[tuple[int, int]], blocks: torch.Tensor) -> torch.Tensor:
    """The place of each token."""
    spans = [(row, torch.arange(start, start + length)) for row, (start, length) in enumerate(chunks)]
    return torch.cat([blocks[row][at // BLOCK] * BLOCK + at % BLOCK for row, at in spans])


@pytest.mark.parametrize("after", [False, True])
def test_the_output_projection_is_normed_before_it_is_added(after: bool) -> None:
    weight, x, attended = drawn(HIDDEN, 48, seed=1) / 8, drawn(9, HIDDEN, seed=2), drawn(9, 48, seed=3)
    weights = AttnOut(proj=pack(weight), after=norm(HIDDEN) if after else None)
    expected = x.double() + exact_norm(attended.double() @ weight.double().T, weights.after)
    assert (attn_out(x.clone(), attended, weights).double() - expected).abs().max() < 1e-5


def test_specs_that_see_the_same_positions_share_their_pieces() -> None:
    whole = AttentionSpec(heads=2, kv_heads=1, head_dim=16, scale=1.0)
    narrow, wide = (AttentionSpec(heads=2, kv_heads=1, head_dim=16, scale=1.0, window=window) for window in (10, 40))
    pool = KVPool.allocate(layers=1, kv_heads=1, head_dim=16, blocks=4, dtype=torch.float32)
    batch = Batch(starts=np.array([0]), lengths=np.array([40]), tables=torch.arange(4)[None])
    step = prepare(batch, pool, (rotary_table(RotarySpec(dim=16, theta=1e4), 64),), (whole, narrow, wide))
    assert step.pieces[wide] is step.pieces[whole]
    assert step.pieces[narrow] is not step.pieces[whole]
