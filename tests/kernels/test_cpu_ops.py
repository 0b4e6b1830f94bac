"""The compiled ops against the references and float64, at every instruction set that this machine has."""

import numpy as np
import pytest
import torch

from kernels import weights as w
from kernels.attention.spec import AttentionSpec
from kernels.backend import Backend, backend
from kernels.cpu import isa
from kernels.kv import BLOCK
from kernels.linear.reference import linear_float32
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotarySpec, rotary_table
from tests.kernels.pairwise import covering

LEVELS = isa.levels()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BACKENDS: dict[tuple[str, int], Backend] = {}


def cpu(level: str, threads: int = 2) -> Backend:
    """One engine a level: threads are not made again for each test."""
    if (level, threads) not in BACKENDS:
        BACKENDS[level, threads] = backend("cpu", threads=threads, isa=level)
    return BACKENDS[level, threads]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(32, 32), (96, 576), (100, 33), (7, 5), (960, 100)])
def test_a_product_equals_float64_for_any_shape_and_bias(level: str, dtype: torch.dtype, n: int, k: int) -> None:
    ops = cpu(level)
    linear = ops.pack.__self__.linear
    weight, bias = draw(n, k).to(dtype), draw(n).to(dtype)
    packed = ops.pack(weight, bias=bias)
    for rows in (1, 3, 16, 17, 33, 70):
        x = draw(rows, k, seed=rows).to(dtype).float()
        expected = x.double() @ weight.double().T + bias.double()
        assert (linear(x, packed).double() - expected).abs().max() < 2e-6 * k, rows


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_product_has_the_same_bits_alone_and_in_any_company(level: str, dtype: torch.dtype) -> None:
    linear, packed = cpu(level).pack.__self__.linear, cpu(level).pack(draw(70, 200).to(dtype))
    x = draw(130, 200)
    whole = linear(x, packed)
    for rows in (1, 2, 5, 16, 17, 31, 32, 33, 64, 100):
        for start in (0, 7, 130 - rows):
            assert torch.equal(linear(x[start : start + rows], packed), whole[start : start + rows]), (rows, start)
    one = cpu(level, threads=1)
    assert torch.equal(one.pack.__self__.linear(x, one.pack(draw(70, 200).to(dtype))), whole)


class Sequences:
    """Random K and V of some sequences in shuffled blocks of a pool that held NaN."""

    def __init__(self, ops: Backend, lengths: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype):
        width = -(-max(lengths) // BLOCK)
        self.ops, self.dtype = ops, dtype
        self.pool = ops.kv_pool(
            layers=2, kv_heads=kv_heads, head_dim=head_dim, blocks=width * len(lengths), dtype=dtype
        )
        self.pool.fill(torch.nan)
        self.tables = torch.randperm(self.pool.blocks, generator=torch.Generator().manual_seed(1)).view(-1, width)
        self.rotary = rotary_table(RotarySpec(dim=head_dim, theta=1e4), max(lengths) + 1)
        self.k = [draw(n, kv_heads, head_dim, seed=n).to(dtype) for n in lengths]
        self.v = [draw(n, kv_heads, head_dim, seed=n + 1).to(dtype) for n in lengths]
        for row, length in enumerate(lengths):
            for start in range(0, length, 40):  # in pieces, as chunks come
                count = min(40, length - start)
                step = self.step([(start, count)], [row])
                own = slice(start, start + count)
                ops.prepare.__self__.kv_write(1, self.k[row][own], self.v[row][own], step, self.pool)

    def step(self, chunks: list[tuple[int, int]], rows: list[int]):
        starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
        batch = Batch(starts=starts, lengths=lengths, tables=self.tables[rows])
        return self.ops.prepare(batch, self.pool, (self.rotary,), ())

    def attend(self, q: torch.Tensor, chunks, rows, spec: AttentionSpec) -> torch.Tensor:
        return self.ops.attention(q.contiguous(), self.step(chunks, rows), self.pool, 1, spec).float()


def textbook(q: torch.Tensor, start: int, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    group = spec.heads // spec.kv_heads
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    at, own = torch.arange(len(k)), (start + torch.arange(len(q)))[:, None]
    seen = at <= own
    if spec.window is not None:
        seen &= own - at < spec.window
    p = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", p, v).flatten(1)


MIXED = [(0, 5), (130, 1), (63, 1), (511, 2), (0, 1), (520, 1), (0, 70), (600, 37), (1040, 1)]
ATTENTION = [  # head_dim, kv_heads, group, window, softcap: each value meets most of the others
    (64, 3, 3, None, None),
    (64, 1, 8, 70, None),
    (80, 2, 7, None, 20.0),
    (96, 2, 1, 1, None),
    (128, 2, 4, 600, 5.0),
    (256, 1, 4, 17, None),
    (8, 4, 2, None, None),
    (32, 2, 33, 90, None),  # more query heads of a KV head than rows that are worked on together
    (64, 1, 71, None, None),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "kv_heads", "group", "window", "softcap"), ATTENTION)
def test_attention_equals_float64_whatever_the_mix(level, dtype, head_dim, kv_heads, group, window, softcap) -> None:
    spec = AttentionSpec(
        heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=0.11, window=window, softcap=softcap
    )
    data = Sequences(cpu(level), [start + length for start, length in MIXED], kv_heads, head_dim, dtype)
    q = draw(sum(n for _, n in MIXED), spec.heads, head_dim).to(dtype).float()
    got, first = data.attend(q, MIXED, list(range(len(MIXED))), spec), 0
    tolerance = 2e-2 if level in isa.PAIRED and dtype == torch.bfloat16 else 2e-5
    for row, (start, length) in enumerate(MIXED):
        own = slice(first, first + length)
        error = (got[own].double() - textbook(q[own], start, data.k[row], data.v[row], spec)).abs().max()
        assert error < tolerance, (row, start, length, error)
        first += length


COMPANY = {
    "shape": ((64, 3, 3), (128, 1, 1), (80, 2, 7), (16, 1, 33)),  # head_dim, KV heads, group
    "dtype": (torch.float32, torch.bfloat16),
    "window": (None, 90),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(",".join(COMPANY), covering(COMPANY))
def test_a_querys_bits_do_not_depend_on_chunking_company_or_threads(level, shape, dtype, window) -> None:
    head_dim, kv_heads, group = shape
    spec = AttentionSpec(heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=0.1, window=window)
    length = 1100
    lengths = [length, 700, 40]
    data = Sequences(cpu(level), lengths, kv_heads, head_dim, dtype)
    alone = Sequences(cpu(level, threads=1), lengths, kv_heads, head_dim, dtype)
    q = draw(length, spec.heads, head_dim)
    whole = data.attend(q, [(0, length)], [0], spec)
    assert torch.equal(alone.attend(q, [(0, length)], [0], spec), whole)
    for start, count in ((0, 7), (3, 1), (511, 1), (512, 1), (509, 6), (600, 64), (1023, 77), (1099, 1)):
        own = q[start : start + count]
        expected = whole[start : start + count]
        assert torch.equal(data.attend(own, [(start, count)], [0], spec), expected), (start, count)
        company = torch.cat((q[:30], own, q[:1], q[:9]))
        mixed = data.attend(company, [(650, 30), (start, count), (39, 1), (0, 9)], [1, 0, 2, 2], spec)
        assert torch.equal(mixed[30 : 30 + count], expected), (start, count)


def norm(size: int, seed: int = 0) -> w.Norm:
    return w.Norm(weight=draw(size, seed=seed).abs() + 0.5, eps=1e-5)


def layer(ops: Backend, dtype: torch.dtype, hidden: int, inner: int, spec: AttentionSpec, **kind: object) -> w.Layer:
    """Weights of one layer, the same for every backend."""
    width, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def pack(n: int, k: int, *, bias: bool = False) -> w.Packed:
        return ops.pack((draw(n, k) / k**0.5).to(dtype), bias=draw(n).to(dtype) if bias else None)

    heads = {"head": (spec.head_dim, spec.head_dim), "projection": (width, kv)}.get(kind.get("head_norm"))
    after = kind.get("after", False)
    before = None if kind.get("bare") else norm(hidden)
    return w.Layer(
        attn_in=w.AttnIn(
            norm=before,
            qkv=pack(width + 2 * kv, hidden, bias=bool(kind.get("bias"))),
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            head_norm=w.HeadNorm(q=norm(heads[0]), k=norm(heads[1], 1)) if heads else None,
        ),
        attention=spec,
        attn_out=w.AttnOut(proj=pack(hidden, width), after=norm(hidden, 2) if after else None),
        mlp=w.Mlp(
            norm=before,
            gate_up=pack(2 * inner, hidden, bias=bool(kind.get("bias"))),
            down=pack(hidden, inner),
            activation=kind.get("activation", "silu"),
            after=norm(hidden, 3) if after else None,
        ),
    )


KINDS = [  # hidden, inner, head_dim, kv_heads, group, rotated, kind
    (576, 512, 64, 3, 3, 64, {}),
    (100, 72, 80, 1, 4, 60, {"bias": True}),
    (96, 64, 32, 2, 2, 32, {"head_norm": "head", "after": True, "activation": "gelu_tanh"}),
    (90, 50, 24, 2, 1, 24, {"head_norm": "projection", "after": True, "bare": True}),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "inner", "head_dim", "kv_heads", "group", "rotated", "kind"), KINDS)
def test_layers_equal_the_references_and_the_ops_one_by_one(
    level, dtype, hidden, inner, head_dim, kv_heads, group, rotated, kind
) -> None:
    spec = AttentionSpec(heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5)
    chunks = [(0, 40), (0, 1), (0, 7)]
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    rotary = rotary_table(RotarySpec(dim=rotated, theta=1e4), 64)
    x = draw(48, hidden)

    def run(ops: Backend, *, fused: bool) -> torch.Tensor:
        stack = tuple(layer(ops, dtype, hidden, inner, spec, **kind) for _ in range(2))
        pool = ops.kv_pool(layers=2, kv_heads=kv_heads, head_dim=head_dim, blocks=9, dtype=dtype)
        pool.fill(torch.nan)
        batch = Batch(starts=starts, lengths=lengths, tables=torch.arange(9).view(3, 3))
        step = ops.prepare(batch, pool, (rotary,), (spec,))
        y = x.clone()
        if fused:
            return ops.layers(y, stack, step, pool)
        for number, one in enumerate(stack):
            q = ops.attn_in(y, one.attn_in, step, pool, number)
            y = ops.attn_out(y, ops.attention(q, step, pool, number, spec), one.attn_out)
            y = ops.mlp(y, one.mlp)
        return y

    got = run(cpu(level), fused=True)
    assert torch.equal(run(cpu(level), fused=False), got)
    expected = run(backend("reference"), fused=True)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 1e-2}[dtype]
    assert (got - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "softcap"), [(1001, None), (64, 5.0)])
def test_embeddings_and_logits_equal_the_references(level, dtype, vocabulary, softcap) -> None:
    table = draw(vocabulary, 100).to(dtype)
    tokens, rows = torch.tensor([3, 0, 63, 5]), torch.tensor([3, 1])
    ops, plain = cpu(level), backend("reference")
    embedding = w.Embedding(table=table, scale=2.5)
    x = ops.embed(tokens, embedding)
    assert torch.equal(x, plain.embed(tokens, embedding))
    got = ops.logits(x, rows, w.Head(norm=norm(100), proj=ops.pack(table), softcap=softcap))
    expected = plain.logits(x, rows, w.Head(norm=norm(100), proj=plain.pack(table), softcap=softcap))
    assert got.shape == (2, vocabulary)
    assert (got - expected).abs().max() < (1e-4 if dtype == torch.float32 else 0.2)


def test_a_level_that_the_machine_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="sse9"):
        backend("cpu", isa="sse9")


def test_reference_logits_are_not_rounded() -> None:
    """What the comparison above stands on."""
    plain = backend("reference")
    weight = draw(64, 100).bfloat16()
    got = linear_float32(draw(2, 100).bfloat16(), plain.pack(weight))
    assert (got.double() - draw(2, 100).bfloat16().double() @ weight.double().T).abs().max() < 1e-3
