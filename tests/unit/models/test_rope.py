"""Rotary tables against transformers' own frequencies, kind by kind, and how their settings are read."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kernels.rotary.table import RotarySpec, frequencies, regime, rotary_table
from worker.models import llama, phi3
from worker.models.errors import ModelError
from worker.models.rope import rotary

ORIGINAL, LONGEST, HEAD_DIM = 256, 1024, 24
_FACTORS = {
    "short_factor": [1 + i / 7 for i in range(HEAD_DIM // 2)],
    "long_factor": [2.0 + i for i in range(HEAD_DIM // 2)],
}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn of other turns": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    "yarn with a given attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8},
    "yarn with mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3},
    "longrope": {"rope_type": "longrope", **_FACTORS},
    "longrope with a factor": {"rope_type": "longrope", "factor": 8.0, **_FACTORS},
    "longrope with a given attention factor": {"rope_type": "longrope", "attention_factor": 1.5, **_FACTORS},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def config(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A Llama's, in today's form."""
    rope = {"rope_theta": 5000.0, "original_max_position_embeddings": ORIGINAL, **scaling}
    if rope["rope_type"] in ("linear", "dynamic"):
        del rope["original_max_position_embeddings"]
    made = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        rope_parameters=rope,
    )
    return {**made.to_dict(), **changes}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("length", [ORIGINAL, LONGEST, 3 * LONGEST])
def test_frequencies_and_amplitude_are_transformers_for_a_sequence_of_the_served_length(
    scaling: dict[str, Any], length: int
) -> None:
    given = config(scaling)
    spec = rotary(given, HEAD_DIM, 10000.0)
    expected, amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](LlamaConfig(**given), "cpu", seq_len=length)
    assert torch.equal(frequencies(spec, length), expected)
    assert spec.scaling is not None
    assert spec.scaling.amplitude == amplitude


@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, *SCALINGS.values()], ids=["default", *SCALINGS])
def test_tables_are_transformers_within_the_original_length(scaling: dict[str, Any]) -> None:
    given = config(scaling)
    table = rotary_table(rotary(given, HEAD_DIM, 10000.0), ORIGINAL)
    cos, sin = LlamaRotaryEmbedding(LlamaConfig(**given))(torch.zeros(1), torch.arange(ORIGINAL)[None])
    assert torch.equal(table.cos, cos[0, :, : HEAD_DIM // 2])
    assert torch.equal(table.sin, sin[0, :, : HEAD_DIM // 2])


def test_a_table_is_that_of_the_served_length_at_every_position() -> None:
    spec = rotary(config(SCALINGS["longrope"]), HEAD_DIM, 10000.0)
    short, long = (rotary_table(spec, 50, length) for length in (ORIGINAL, ORIGINAL + 1))
    assert not torch.equal(short.cos, long.cos)
    assert torch.equal(long.cos, rotary_table(spec, LONGEST).cos[:50])


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_lengths_of_one_regime_have_one_table_and_others_another(scaling: dict[str, Any]) -> None:
    spec = rotary(config(scaling), HEAD_DIM, 10000.0)
    lengths = (1, ORIGINAL, ORIGINAL + 1, LONGEST, LONGEST + 1, LONGEST + 2)
    tables = {length: frequencies(spec, length) for length in lengths}
    for one in lengths:
        for other in lengths:
            same = regime(spec, one) == regime(spec, other)
            assert same == torch.equal(tables[one], tables[other]), (one, other)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_settings_of_older_configurations_read_as_todays(scaling: dict[str, Any]) -> None:
    new = config(scaling)
    rope = new.pop("rope_parameters")
    old = {
        **new,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {
            "type": scaling["rope_type"],
            **{k: v for k, v in rope.items() if k not in ("rope_theta", "rope_type")},
        },
    }
    assert rotary(old, HEAD_DIM, 10000.0) == rotary({**new, "rope_parameters": rope}, HEAD_DIM, 10000.0)


def test_without_settings_the_familys_base_counts() -> None:
    assert rotary({}, 16, 123.0) == RotarySpec(dim=16, theta=123.0)
    assert rotary({"rope_theta": 7.0, "rope_scaling": None}, 16, 123.0) == RotarySpec(dim=16, theta=7.0)


def test_an_original_length_beside_the_settings_wins_over_one_inside() -> None:
    """As in transformers: Phi's stands outside."""
    inside = config(SCALINGS["llama3"])
    outside = rotary({**inside, "original_max_position_embeddings": 77}, HEAD_DIM, 10000.0)
    scaling = {**inside["rope_parameters"], "original_max_position_embeddings": 77}
    assert outside == rotary({**inside, "rope_parameters": scaling}, HEAD_DIM, 10000.0)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**inside, original_max_position_embeddings=77), "cpu")
    assert torch.equal(frequencies(outside, 99), expected)


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "default"}, LONGEST),
        (SCALINGS["linear"], 2.5 * LONGEST),
        (SCALINGS["dynamic"], 2 * LONGEST),
        (SCALINGS["yarn"], LONGEST),
        ({"rope_type": "yarn", "factor": 16.0}, 16 * ORIGINAL),
        (SCALINGS["longrope"], LONGEST),
        (SCALINGS["llama3"], LONGEST),
    ],
)
def test_scaling_that_starts_from_the_given_length_reaches_beyond_it(scaling: dict[str, Any], longest: int) -> None:
    assert llama.spec(config(scaling)).max_positions == longest


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_longrope_under_its_former_names_is_phis(kind: str) -> None:
    lists = {name: values[:9] for name, values in _FACTORS.items()}
    made = Phi3Config(
        hidden_size=96,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=ORIGINAL,
        partial_rotary_factor=0.75,
        rope_parameters={"rope_type": "longrope", "rope_theta": 5000.0, **lists},
    ).to_dict()
    rope = made.pop("rope_parameters")
    del rope["original_max_position_embeddings"]
    old = {**made, "rope_theta": 5000.0, "partial_rotary_factor": 0.75, "rope_scaling": {"type": kind, **lists}}
    assert phi3.spec(old).rotary == phi3.spec({**made, "rope_parameters": rope}).rotary
    assert phi3.spec(old).rotary[0].dim == 18


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        (
            {"rope_type": "yarn9"},
            "rope_type 'yarn9' is not served; served: default, linear, dynamic, yarn, longrope, llama3",
        ),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor must be over 0"),
        ({"rope_type": "dynamic", "factor": "x"}, "factor must be a number"),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": "9"},
            "original_max_position_embeddings",
        ),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": "yes"}, "truncate"),
        ({"rope_type": "longrope", "long_factor": [1.0] * 12}, "short_factor must be a list of 12 numbers, is None"),
        (
            {"rope_type": "longrope", "long_factor": [1.0] * 3, "short_factor": [1.0] * 12},
            "long_factor .*12 numbers, is 3 values",
        ),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "default", "rope_theta": -1.0}, "rope_theta must be over 0"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_wrong_settings_are_named(rope: dict[str, Any], named: str) -> None:
    given = {**config({"rope_type": "default"}), "rope_parameters": rope}
    with pytest.raises(ModelError, match=named):
        llama.spec(given)
