"""What is measured of each op: a call, its FLOP, and the bytes that it cannot but move."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.sample.reference import Draw
from kernels.weights import Packed
from octavo.bench.kernels.rig import Rig, Step

Call = Callable[[int], torch.Tensor | None]
_FLOAT = 4  # bytes of the residual stream and of logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`make(rig)` gives the call, which takes a number: which layer's weights it uses, so that no cache keeps them from one call to the
    next. `rows` go through a product. Zero `bytes` and `flop`: nothing is known of what it must cost.
    """

    op: str
    name: str
    rows: int
    flop: float
    bytes: float
    make: Callable[[Rig], Call]


def _size(packed: Packed, rig: Rig) -> int:
    count: int = packed.n * packed.k
    return count * rig.dtype.itemsize


def _drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _tokens(count: int, rig: Rig) -> torch.Tensor:
    return torch.randint(rig.weights.spec.vocab_size, (count,), generator=torch.Generator().manual_seed(3))


def _linear(op: str, step: Step, rig: Rig, packed: Sequence[Packed], make: Callable[[Rig], Call]) -> Case:
    weights = sum(_size(one, rig) for one in packed)
    moved = 2 * step.tokens * rig.weights.spec.hidden * _FLOAT
    flop = 2 * step.tokens * sum(one.n * one.k for one in packed)
    return Case(op=op, name=_name(step), rows=step.tokens, flop=flop, bytes=weights + moved, make=make)


def _name(step: Step) -> str:
    return f"{step.sequences} x {step.length} at {step.start}"


def _layer(rig: Rig, number: int) -> int:
    return number % len(rig.weights.layers)


def attn_in(step: Step, rig: Rig) -> Case:
    """Queries of a step, and its KV written."""

    def make(rig: Rig) -> Call:
        prepared, x = rig.prepared(step), _drawn(step.tokens, rig.weights.spec.hidden)

        def call(number: int) -> torch.Tensor:
            at = _layer(rig, number)
            return rig.ops.attn_in(x, rig.weights.layers[at].attn_in, prepared, rig.pool, at)

        return call

    return _linear("attn_in", step, rig, [rig.weights.layers[0].attn_in.qkv], make)


def attention(step: Step, rig: Rig) -> Case:
    """All queries of a step against the KV behind them."""
    spec = rig.weights.layers[0].attention

    def make(rig: Rig) -> Call:
        prepared, q = rig.prepared(step), _drawn(step.tokens, spec.heads, spec.head_dim)

        def call(number: int) -> torch.Tensor:
            at = _layer(rig, number)
            return rig.ops.attention(q, prepared, rig.pool, at, rig.weights.layers[at].attention)

        return call

    kv = 2 * spec.kv_heads * spec.head_dim * rig.dtype.itemsize * step.sequences * (step.start + step.length)
    moved = 2 * step.tokens * spec.heads * spec.head_dim * _FLOAT
    flop = 4 * spec.heads * spec.head_dim * step.looks
    return Case(op="attention", name=_name(step), rows=step.tokens, flop=flop, bytes=kv + moved, make=make)


def attn_out(step: Step, rig: Rig) -> Case:
    """What attention gave, projected."""
    spec = rig.weights.layers[0].attention

    def make(rig: Rig) -> Call:
        prepared, q = rig.prepared(step), _drawn(step.tokens, spec.heads, spec.head_dim)
        attended = rig.ops.attention(q, prepared, rig.pool, 0, rig.weights.layers[0].attention)
        x = _drawn(step.tokens, rig.weights.spec.hidden, seed=2)
        return lambda number: rig.ops.attn_out(x, attended, rig.weights.layers[_layer(rig, number)].attn_out)

    return _linear("attn_out", step, rig, [rig.weights.layers[0].attn_out.proj], make)


def mlp(step: Step, rig: Rig) -> Case:
    """Gate, up and down."""
    weights = rig.weights.layers[0].mlp

    def make(rig: Rig) -> Call:
        x = _drawn(step.tokens, rig.weights.spec.hidden)
        return lambda number: rig.ops.mlp(x, rig.weights.layers[_layer(rig, number)].mlp)

    return _linear("mlp", step, rig, [weights.gate_up, weights.down], make)


def layers(step: Step, rig: Rig) -> Case:
    """The whole stack."""
    parts = [attn_in(step, rig), attention(step, rig), attn_out(step, rig), mlp(step, rig)]
    count = len(rig.weights.layers)

    def make(rig: Rig) -> Call:
        prepared, x = rig.prepared(step), rig.ops.embed(_tokens(step.tokens, rig), rig.weights.embedding)
        return lambda _: rig.ops.layers(x, rig.weights.layers, prepared, rig.pool)

    flop, moved = sum(part.flop for part in parts), sum(part.bytes for part in parts)
    return Case(op="layers", name=_name(step), rows=step.tokens, flop=count * flop, bytes=count * moved, make=make)


def prepare(step: Step, _rig: Rig) -> Case:
    """A step's preparation, once for all layers."""

    def make(rig: Rig) -> Call:
        def call(_: int) -> None:
            rig.prepared(step)

        return call

    return Case(op="prepare", name=_name(step), rows=step.tokens, flop=0, bytes=0, make=make)


def embed(rows: int, rig: Rig) -> Case:
    """Rows of the table."""
    tokens = _tokens(rows, rig)
    moved = rows * rig.weights.spec.hidden * (rig.dtype.itemsize + _FLOAT)

    def make(rig: Rig) -> Call:
        return lambda _: rig.ops.embed(tokens, rig.weights.embedding)

    return Case(op="embed", name=f"{rows} rows", rows=rows, flop=0, bytes=moved, make=make)


def logits(rows: int, rig: Rig) -> Case:
    """The head, for all rows."""
    head = rig.weights.head.proj

    def make(rig: Rig) -> Call:
        x = _drawn(rows, rig.weights.spec.hidden)
        return lambda _: rig.ops.logits(x, torch.arange(rows), rig.weights.head)

    moved = _size(head, rig) + rows * head.n * _FLOAT
    return Case(op="logits", name=f"{rows} rows", rows=rows, flop=2 * rows * head.n * head.k, bytes=moved, make=make)


def drawn(op: str, rows: int, rig: Rig) -> Case:
    """A token of each row: `greedy`, or `sample` with temperature, top-k and top-p."""
    vocabulary = rig.weights.spec.vocab_size
    ids = torch.arange(rows)
    draw = Draw(
        temperature=torch.full((rows,), 0.8),
        top_k=torch.full((rows,), 50),
        top_p=torch.full((rows,), 0.95),
        min_p=torch.zeros(rows),
        seed_low=ids,
        seed_high=ids,
        position=ids,
        choice=torch.zeros(rows, dtype=torch.int64),
    )

    def make(rig: Rig) -> Call:
        scores = _drawn(rows, vocabulary) * 4
        return (lambda _: rig.ops.greedy(scores)) if op == "greedy" else (lambda _: rig.ops.sample(scores, draw))

    return Case(op=op, name=f"{rows} rows", rows=rows, flop=0, bytes=rows * vocabulary * _FLOAT, make=make)


def all_of(rig: Rig, decodes: Sequence[Step], prefills: Sequence[Step]) -> Iterator[Case]:
    """Every op. Rows are the decode steps' sequences."""
    for step in (*decodes, *prefills):
        for make in (prepare, attn_in, attention, attn_out, mlp, layers):
            yield make(step, rig)
    for rows in sorted({step.sequences for step in decodes}):
        yield embed(rows, rig)
        yield logits(rows, rig)
        yield drawn("greedy", rows, rig)
        yield drawn("sample", rows, rig)
