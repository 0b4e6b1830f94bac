"""The kernel bench on a tiny model: every op is there, its costs are counted right, and a wrong op is seen."""

from dataclasses import replace

import pytest
import torch

from kernels.backend import Backend, backend
from octavo.bench.bound import Limits
from octavo.bench.kernels import cases
from octavo.bench.kernels.measure import markdown, measure
from octavo.bench.kernels.rig import Rig, Step
from octavo.cli.bench.kernels import OPS
from tests.fakes.checkpoint import tiny_llama

DECODES = (Step(sequences=1, start=20, length=1), Step(sequences=3, start=41, length=1))
PREFILLS = (Step(sequences=1, start=16, length=24),)
LIMITS = Limits(read=1e9, large=1e9, packed=5e8)


def rig(ops: Backend, of: Rig | None = None) -> Rig:
    return Rig(ops, tiny_llama(num_hidden_layers=2)[1], torch.float32, (*DECODES, *PREFILLS), of=of)


def rows(ops: Backend, *only: str) -> list[dict[str, object]]:
    reference = rig(backend("reference"))
    steps = (DECODES, PREFILLS)
    return list(measure(rig(ops, reference), reference, steps, lambda: LIMITS, only=only, rounds=1, seconds=0.0))


def test_each_op_is_measured_at_each_step_and_equals_itself() -> None:
    found = rows(backend("reference"))
    ops = {"prepare", "attn_in", "attention", "attn_out", "mlp", "layers"}
    assert {row["op"] for row in found} == ops | {"embed", "logits", "greedy", "sample"} == set(OPS)
    for op in ops:
        assert [row["case"] for row in found if row["op"] == op] == ["1 x 1 at 20", "3 x 1 at 41", "1 x 24 at 16"]
    assert {row["error"] for row in found if row["op"] != "prepare"} == {0.0}
    assert markdown(found).count("\n") == len(found) + 2


def test_what_one_step_writes_no_other_sees() -> None:
    """Every block of every step of the compiled backend, where there is one, holds what the reference's does."""
    found = rows(backend("auto", threads=1))
    assert all(row["error"] < 1e-5 for row in found if row["error"] is not None)  # type: ignore[operator]


def test_an_op_that_is_wrong_shows() -> None:
    right = backend("reference")
    wrong = replace(right, mlp=lambda x, weights: right.mlp(x, weights) * 1.5)
    found = rows(wrong, "mlp", "embed")
    assert {row["op"] for row in found} == {"mlp", "embed"}
    assert all(row["error"] > 0.1 for row in found if row["op"] == "mlp")  # type: ignore[operator]
    assert all(row["error"] == 0 for row in found if row["op"] == "embed")


def test_costs_by_hand() -> None:
    """Hidden 96, 6 heads of 16 over 2 of KV, intermediate 172, vocabulary 199."""
    it, step = rig(backend("reference")), DECODES[1]
    stream = 2 * 3 * 96 * 4
    mlp = cases.mlp(step, it)
    assert (mlp.flop, mlp.bytes) == (2 * 3 * 3 * 172 * 96, 3 * 172 * 96 * 4 + stream)
    qkv = cases.attn_in(step, it)
    assert (qkv.flop, qkv.bytes) == (2 * 3 * 10 * 16 * 96, 10 * 16 * 96 * 4 + stream)
    attention = cases.attention(step, it)
    assert attention.flop == 4 * 6 * 16 * 3 * 42
    assert attention.bytes == 2 * 2 * 16 * 4 * 3 * 42 + stream
    assert cases.logits(3, it).flop == 2 * 3 * 199 * 96
    assert cases.layers(step, it).flop == 2 * sum(
        case(step, it).flop for case in (cases.attn_in, cases.attention, cases.attn_out, cases.mlp)
    )


def test_a_prefill_looks_at_what_is_behind_and_at_its_own_past() -> None:
    assert PREFILLS[0].looks == sum(16 + place + 1 for place in range(24))


def test_a_step_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="2048 positions"):
        Rig(backend("reference"), tiny_llama()[1], torch.float32, [Step(sequences=1, start=2048, length=1)])
