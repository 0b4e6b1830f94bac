"""The Triton backend as a whole, in the interpreter: its table of ops against the references'."""

import numpy as np
import pytest
import torch

from kernels.attention.spec import AttentionSpec
from kernels.backend import Backend, backend
from kernels.lora.slots import NONE, BatchAdapters
from kernels.lora.weights import LoraMisfit
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotarySpec, rotary_table
from kernels.weights import Embedding, Head
from tests.kernels.test_cpu_ops import KINDS, layer, norm
from tests.kernels.test_lora import Model, adapters, models, prompt
from tests.kernels.triton_cases import DTYPES, TOLERANCE, drawn

OFF = {torch.float32: 2e-5, torch.bfloat16: 8e-2, torch.float16: 1e-2}


def triton(*, deterministic: bool = False) -> Backend:
    return backend("triton", deterministic=deterministic)


CHUNKS = [(0, 1), (0, 17)]


def run(ops: Backend, dtype: torch.dtype, kind: tuple, *, fused: bool) -> torch.Tensor:
    hidden, inner, head_dim, kv_heads, group, rotated, options = kind
    spec = AttentionSpec(heads=kv_heads * group, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5)
    starts, lengths = np.array(CHUNKS, dtype=np.int64).T.copy()
    stack = tuple(layer(ops, dtype, hidden, inner, spec, **options) for _ in range(2))
    pool = ops.kv_pool(layers=2, kv_heads=kv_heads, head_dim=head_dim, blocks=6, dtype=dtype)
    pool.fill(torch.nan)
    step = ops.prepare(
        Batch(starts=starts, lengths=lengths, tables=torch.arange(6).view(2, 3)),
        pool,
        (rotary_table(RotarySpec(dim=rotated, theta=1e4), 64),),
        (spec,),
    )
    x = drawn(18, hidden)
    if fused:
        return ops.layers(x, stack, step, pool)
    for number, one in enumerate(stack):
        q = ops.attn_in(x, one.attn_in, step, pool, number)
        x = ops.attn_out(x, ops.attention(q, step, pool, number, spec), one.attn_out)
        x = ops.mlp(x, one.mlp)
    return x


@pytest.mark.parametrize(
    ("kind", "dtype"),
    list(zip(KINDS, (torch.bfloat16, torch.float16, torch.float32, torch.bfloat16), strict=True)),
    ids=["plain", "bias", "head norm", "joint norm"],
)
def test_layers_equal_the_references_and_the_ops_one_by_one(kind, dtype) -> None:
    got = run(triton(), dtype, kind, fused=True)
    assert torch.equal(run(triton(), dtype, kind, fused=False), got)
    want = run(backend("reference"), dtype, kind, fused=True)
    assert (got - want).abs().max() < OFF[dtype] * max(1.0, float(want.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_embeddings_and_logits_equal_the_references(dtype, softcap) -> None:
    table, tokens, rows = drawn(70, 100).to(dtype), torch.tensor([3, 0, 63, 5]), torch.tensor([3, 1])
    found = []
    for ops in (triton(), backend("reference")):
        x = ops.embed(tokens, Embedding(table=table, scale=3.0))
        found.append((x, ops.logits(x, rows, Head(norm=norm(100), proj=ops.pack(table / 10), softcap=softcap))))
    (x, logits), (want_x, want) = found
    assert torch.equal(x, want_x)
    assert (logits - want).abs().max() < 4 * TOLERANCE[dtype] * want.abs().max()


@pytest.mark.parametrize(
    ("shape", "dtype"), list(zip(models(), (torch.bfloat16, torch.float32), strict=True)), ids=["aligned", "odd"]
)
def test_a_batch_with_many_adapters_equals_the_references(shape, dtype) -> None:
    model, slots = Model(**shape, dtype=dtype), [2, NONE, 0, 1, 2, 5, 4]
    chunks = [prompt(seed, length) for seed, length in enumerate((1, 3, 20, 1, 2, 5, 1))]
    found = []
    for ops in (triton(), backend("reference")):
        held = model.slots(ops, adapters(model.shapes), dtype)
        found.append(model.run(ops, model.built(ops, dtype), chunks, slots, held))
    got, want = found
    assert (got - want).abs().max() < OFF[dtype] * max(1.0, float(want.abs().max()))


def test_an_empty_slot_and_a_misfit_are_refused() -> None:
    ops, model = triton(), Model(**models()[0], dtype=torch.float32)
    held = model.slots(ops, [adapters(model.shapes)[0], None], torch.float32)
    pool = ops.kv_pool(layers=2, kv_heads=1, head_dim=32, blocks=4, dtype=torch.float32)
    one = {"starts": np.array([0]), "lengths": np.array([1]), "tables": torch.zeros(1, 4, dtype=torch.int64)}
    with pytest.raises(LookupError, match="slot 1 is empty"):
        ops.prepare(Batch(**one, adapters=BatchAdapters(slots=held, of_chunk=np.array([1]))), pool, (), (model.spec,))
    with pytest.raises(LoraMisfit):
        held.install(0, adapters(Model(**models()[1], dtype=torch.float32).shapes)[0])
    ops.prepare(Batch(**one, adapters=BatchAdapters(slots=held, of_chunk=np.array([0]))), pool, (), (model.spec,))


def test_deterministic_rows_have_the_same_bits_in_every_batch() -> None:
    ops, model = triton(deterministic=True), Model(**models()[0], dtype=torch.bfloat16)
    built, chunks = model.built(ops, torch.bfloat16), [prompt(0, 9), prompt(1, 1), prompt(2, 20)]
    whole = model.run(ops, built, chunks, [NONE] * 3, None)
    first = 0
    for tokens in chunks:
        assert torch.equal(model.run(ops, built, [tokens], [NONE], None), whole[first : first + len(tokens)])
        first += len(tokens)


def test_the_backends_numerics_tell_free_from_fixed_sums() -> None:
    assert triton().numerics != triton(deterministic=True).numerics
    assert triton().numerics == triton().numerics
