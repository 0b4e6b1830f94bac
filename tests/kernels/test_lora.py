"""Adapters of many sequences in one batch: against float64, and bit for bit in every company."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kernels import weights as w
from kernels.attention.spec import AttentionSpec
from kernels.backend import Backend, backend
from kernels.cpu import isa
from kernels.lora.slots import NONE, AdapterSlots, BatchAdapters
from kernels.lora.weights import LAYER_MODULES, LoraMisfit, LoraPair, LoraShapes, LoraWeights
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotarySpec, rotary_table

LAYERS = 2
BACKENDS: dict[str, Backend] = {}
KINDS = ["reference", *isa.levels()]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}


def ops_of(kind: str) -> Backend:
    if kind not in BACKENDS:
        BACKENDS[kind] = backend("reference") if kind == "reference" else backend("cpu", threads=2, isa=kind)
    return BACKENDS[kind]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


class Model:
    """A random stack of two layers with embedding and head; `merged` gives the same with an adapter's products added to its weights."""

    def __init__(
        self, *, hidden: int, inner: int, head_dim: int, kv_heads: int, group: int, after: bool, dtype: torch.dtype
    ):
        self.hidden, self.inner, self.after, self.dtype = hidden, inner, after, dtype
        self.spec = AttentionSpec(
            heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, softcap=None
        )
        queries, keys = self.spec.heads * head_dim, kv_heads * head_dim
        self.shapes = LoraShapes(
            layers=LAYERS,
            modules={
                "q": (queries, hidden),
                "k": (keys, hidden),
                "v": (keys, hidden),
                "o": (hidden, queries),
                "gate": (inner, hidden),
                "up": (inner, hidden),
                "down": (hidden, inner),
                "head": (203, hidden),
                "embed": (hidden, 203),
            },
        )
        self.rotary = rotary_table(RotarySpec(dim=head_dim, theta=1e4), 64)

    def weight(self, layer: int, module: str) -> torch.Tensor:
        n, k = self.shapes.modules[module]
        return draw(n, k, seed=7 * layer + list(self.shapes.modules).index(module)) / k**0.5

    def built(self, ops: Backend, dtype: torch.dtype, merged: LoraWeights | None = None):
        extra = {} if merged is None else {(i, m): p.scale * p.b @ p.a for i, m, p in merged.pairs()}

        def pack(layer: int, *modules: str) -> w.Packed:
            parts = [self.weight(layer, m) + extra.get((layer, m), 0) for m in modules]
            return ops.pack(torch.cat(parts).to(dtype))

        def norm(seed: int) -> w.Norm:
            return w.Norm(weight=draw(self.hidden, seed=seed).abs() + 0.5, eps=1e-5)

        stack = tuple(
            w.Layer(
                attn_in=w.AttnIn(
                    norm=norm(1),
                    qkv=pack(i, "q", "k", "v"),
                    heads=self.spec.heads,
                    kv_heads=self.spec.kv_heads,
                    head_dim=self.spec.head_dim,
                ),
                attention=self.spec,
                attn_out=w.AttnOut(proj=pack(i, "o"), after=norm(2) if self.after else None),
                mlp=w.Mlp(
                    norm=norm(3),
                    gate_up=pack(i, "gate", "up"),
                    down=pack(i, "down"),
                    activation="silu",
                    after=norm(4) if self.after else None,
                ),
            )
            for i in range(LAYERS)
        )
        table = (self.weight(-1, "embed").T + (extra[-1, "embed"].T if (-1, "embed") in extra else 0)).to(dtype)
        head = w.Head(norm=norm(5), proj=pack(-1, "head"), softcap=9.0 if self.after else None)
        return w.Embedding(table=table.contiguous(), scale=1.5), stack, head

    def slots(self, ops: Backend, adapters: Sequence[LoraWeights | None], dtype: torch.dtype) -> AdapterSlots:
        slots = ops.adapter_slots(self.shapes, slots=len(adapters), max_rank=64, dtype=dtype)
        for slot, adapter in enumerate(adapters):
            if adapter is not None:
                slots.install(slot, adapter)
        return slots

    def run(self, ops: Backend, built, chunks: list[list[int]], of_chunk: list[int], slots: AdapterSlots | None):
        """Logits of every token, float32 [tokens, 203], chunk after chunk."""
        embedding, stack, head = built
        lengths = np.array([len(tokens) for tokens in chunks], dtype=np.int64)
        pool = ops.kv_pool(
            layers=LAYERS,
            kv_heads=self.spec.kv_heads,
            head_dim=self.spec.head_dim,
            blocks=4 * len(chunks),
            dtype=embedding.table.dtype,
        )
        pool.fill(torch.nan)
        batch = Batch(
            starts=np.zeros_like(lengths),
            lengths=lengths,
            tables=torch.arange(4 * len(chunks)).view(-1, 4),
            adapters=None if slots is None else BatchAdapters(slots=slots, of_chunk=np.array(of_chunk)),
        )
        step = ops.prepare(batch, pool, (self.rotary,), (self.spec,))
        tokens = torch.tensor([token for chunk in chunks for token in chunk])
        x = ops.layers(ops.embed(tokens, embedding, step).clone(), stack, step, pool)
        return ops.logits(x, torch.arange(len(tokens)), head, step).clone()


def adapter(shapes: LoraShapes, seed: int, rank: int, modules: Sequence[str]) -> LoraWeights:
    def pair(layer: int, module: str) -> LoraPair:
        n, k = shapes.modules[module]
        own = max(1, rank - 3 * layer if layer > 0 else rank)
        a = draw(own, k, seed=seed + layer) / k**0.5
        return LoraPair(a=a, b=draw(n, own, seed=seed + 50 + layer) / own**0.5, scale=0.5 + 0.25 * (seed % 3))

    return LoraWeights(
        layers=tuple({m: pair(i, m) for m in LAYER_MODULES if m in modules} for i in range(LAYERS)),
        head=pair(-1, "head") if "head" in modules else None,
        embed=pair(-1, "embed") if "embed" in modules else None,
    )


def adapters(shapes: LoraShapes) -> list[LoraWeights]:
    everything = [*LAYER_MODULES, "head", "embed"]
    kinds = [
        (8, everything),
        (64, ["q", "v"]),
        (24, ["gate", "down", "head"]),
        (33, ["up", "o", "embed"]),
        (5, ["k"]),
        (48, everything),
    ]
    return [adapter(shapes, seed, rank, modules) for seed, (rank, modules) in enumerate(kinds)]


def models() -> list[dict[str, object]]:
    return [
        {"hidden": 96, "inner": 128, "head_dim": 32, "kv_heads": 1, "group": 3, "after": False},
        {"hidden": 100, "inner": 71, "head_dim": 24, "kv_heads": 2, "group": 2, "after": True},
    ]


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(0, 203, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


# Chunks in no order of adapters: several of one, long and of one token, and of the base model.
MIX = [(2, 1), (NONE, 1), (0, 40), (1, 1), (2, 1), (NONE, 17), (3, 5), (0, 1), (5, 21), (4, 1), (2, 9), (1, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", models(), ids=["aligned", "odd"])
def test_mixed_adapters_give_each_row_what_merged_weights_give_it_and_the_same_bits_alone(kind, dtype, shape) -> None:
    """The merged model runs in float32 by the references, from unrounded weights."""
    ops, model = ops_of(kind), Model(**shape, dtype=dtype)
    built, all_of_them = model.built(ops, dtype), adapters(model.shapes)
    slots = model.slots(ops, all_of_them, dtype)
    chunks = [prompt(seed, length) for seed, (_, length) in enumerate(MIX)]
    mixed = model.run(ops, built, chunks, [slot for slot, _ in MIX], slots)
    plain, first = ops_of("reference"), 0
    moved = model.slots(ops, [None, *reversed(all_of_them)], dtype)  # other slots, other memory
    for (slot, length), tokens in zip(MIX, chunks, strict=True):
        own = mixed[first : first + length]
        merged = model.built(plain, torch.float32, None if slot == NONE else all_of_them[slot])
        expected = model.run(plain, merged, [tokens], [NONE], None)
        assert (own - expected).abs().max() < TOLERANCE[dtype] * max(1.0, float(expected.abs().max())), slot
        there = NONE if slot == NONE else len(all_of_them) - slot
        assert torch.equal(model.run(ops, built, [tokens], [there], moved), own), (slot, length)
        if slot == NONE:
            assert torch.equal(model.run(ops, built, [tokens], [NONE], None), own)
        first += length


# Whole steps of rows of one adapter, which go with the base's products, beside rows of the same adapter that share their step with others.
LONG = [(0, 64), (2, 1), (0, 40), (4, 33), (NONE, 7), (5, 64), (2, 64), (4, 1), (2, 30), (1, 40), (NONE, 64)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_many_rows_of_one_adapter_have_the_same_bits_alone_one_by_one_and_among_others(kind, dtype) -> None:
    ops, model = ops_of(kind), Model(**models()[0], dtype=dtype)
    built, slots = model.built(ops, dtype), model.slots(ops, adapters(model.shapes), dtype)
    chunks = [prompt(seed, length) for seed, (_, length) in enumerate(LONG)]
    mixed, first = model.run(ops, built, chunks, [slot for slot, _ in LONG], slots), 0
    for (slot, length), tokens in zip(LONG, chunks, strict=True):
        own = mixed[first : first + length]
        assert torch.equal(model.run(ops, built, [tokens], [slot], slots), own), (slot, length)
        among = model.run(ops, built, [[7], tokens[:31], [9]], [(slot + 1) % 6, slot, NONE], slots)
        assert torch.equal(among[1:-1], own[:31]), (slot, length)
        first += length


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_huge_weights_leaves_the_rows_beside_it_alone(kind: str) -> None:
    ops, model = ops_of(kind), Model(**models()[0], dtype=torch.bfloat16)
    built, (good, *_) = model.built(ops, torch.bfloat16), adapters(model.shapes)
    pairs = {m: LoraPair(a=p.a, b=torch.full_like(p.b, 3.4e38), scale=1.0) for m, p in good.layers[0].items()}
    slots = model.slots(ops, [good, LoraWeights(layers=(pairs, {}))], torch.bfloat16)
    mixed = model.run(ops, built, [prompt(1, 3), prompt(2, 40), prompt(3, 5)], [0, 1, 0], slots)
    assert torch.equal(mixed[:3], model.run(ops, built, [prompt(1, 3)], [0], slots))
    assert torch.equal(mixed[-5:], model.run(ops, built, [prompt(3, 5)], [0], slots))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ops_one_by_one_equal_all_layers_in_one_call(kind: str) -> None:
    ops, model = ops_of(kind), Model(**models()[0], dtype=torch.bfloat16)
    (embedding, stack, _), all_of_them = model.built(ops, torch.bfloat16), adapters(model.shapes)
    slots = model.slots(ops, all_of_them, torch.bfloat16)
    pool = ops.kv_pool(layers=LAYERS, kv_heads=1, head_dim=32, blocks=9, dtype=torch.bfloat16)
    batch = Batch(
        starts=np.zeros(3, np.int64),
        lengths=np.array([3, 30, 1]),
        tables=torch.arange(9).view(3, 3),
        adapters=BatchAdapters(slots=slots, of_chunk=np.array([0, 5, 0])),
    )
    step = ops.prepare(batch, pool, (model.rotary,), (model.spec,))
    x = ops.embed(torch.tensor(prompt(0, 34)), embedding, step).clone()
    y = x.clone()
    for number, one in enumerate(stack):
        q = ops.attn_in(y, one.attn_in, step, pool, number)
        y = ops.attn_out(y, ops.attention(q, step, pool, number, model.spec), one.attn_out, step, number)
        y = ops.mlp(y, one.mlp, step, number)
    assert torch.equal(ops.layers(x, stack, step, pool), y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_takes_another_adapter_and_an_empty_one_fails_its_step(kind: str) -> None:
    ops, model = ops_of(kind), Model(**models()[0], dtype=torch.float32)
    built, (first, second, *_) = model.built(ops, torch.float32), adapters(model.shapes)
    slots = model.slots(ops, [first], torch.float32)
    tokens = prompt(3, 12)
    before = model.run(ops, built, [tokens], [0], slots)
    slots.install(0, second)
    after = model.run(ops, built, [tokens], [0], slots)
    assert not torch.equal(before, after)
    assert torch.equal(after, model.run(ops, built, [tokens], [0], model.slots(ops, [second], torch.float32)))
    slots.clear(0)
    with pytest.raises(LookupError, match="adapter slot 0 is empty"):
        model.run(ops, built, [tokens], [0], slots)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_an_adapter_that_does_not_fit_is_refused_by_module_and_the_slot_keeps_what_it_held(kind: str) -> None:
    ops, model = ops_of(kind), Model(**models()[0], dtype=torch.float32)
    built, good = model.built(ops, torch.float32), adapters(model.shapes)[0]
    slots = model.slots(ops, [good], torch.float32)
    before = model.run(ops, built, [prompt(3, 5)], [0], slots)
    misshapen = LoraPair(a=draw(4, 95), b=draw(96, 4), scale=1.0)
    with pytest.raises(LoraMisfit, match="layer 1 q: a \\[4, 95\\]"):
        slots.install(0, LoraWeights(layers=({}, {"q": misshapen})))
    with pytest.raises(LoraMisfit, match="layer 0 k: rank 65 is over the largest served, 64"):
        slots.install(0, adapter(model.shapes, 0, 65, ["k"]))
    with pytest.raises(LoraMisfit, match="1 layers, the model 2"):
        slots.install(0, LoraWeights(layers=({},)))
    assert torch.equal(model.run(ops, built, [prompt(3, 5)], [0], slots), before)
