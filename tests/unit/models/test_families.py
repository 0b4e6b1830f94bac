"""Reading every family's configuration and tensors: what is left out, what is wrong, what is missing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from kernels.rotary.table import RotarySpec
from tests.fakes.checkpoint import MemoryCheckpoint
from tests.fakes.families import WINDOW, Variant, variants
from worker.execution.build import RunnerConfig, build
from worker.models.errors import ModelError
from worker.models.registry import families, find
from worker.models.spec import DecoderSpec

CONFIG = RunnerConfig(
    dtype="float32",
    max_running=1,
    step_tokens=16,
    max_model_len=64,
    kv_bytes=4 << 20,
    threads=1,
    deterministic=False,
    backend="reference",
)
FIRSTS = tuple({variant.model_type: variant for variant in reversed(variants())}.values())
BY_NAME = {variant.name: variant for variant in variants()}
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def spec(config: dict[str, Any]) -> DecoderSpec:
    return find(config).spec(config)


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**BY_NAME[name].make()[1].config, **changes}


def seen(name: str, **changes: Any) -> list[int | None]:
    """Each layer's window."""
    return [layer.window for layer in spec(config(name, **changes)).attention]


def test_every_family_is_made_by_a_variant() -> None:
    assert {variant.model_type for variant in variants()} == set(families())


@pytest.mark.parametrize("kind", ["mamba9", None, 7, ["llama"], "Llama"])
def test_any_other_model_type_is_refused_with_what_is_served(kind: object) -> None:
    served = "gemma2, gemma3, gemma3_text, llama, mistral, olmo2, phi3, qwen2, qwen3"
    with pytest.raises(ModelError, match=f"model_type .* is not served; served: {served}"):
        find({"model_type": kind})


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.name)
def test_a_configuration_of_what_differs_from_defaults_reads_as_the_whole_one(variant: Variant) -> None:
    """config.json often leaves defaults out."""
    made = CONFIG_MAPPING[variant.model_type](**variant.fields())
    assert spec({**made.to_diff_dict(), "model_type": variant.model_type}) == spec(made.to_dict())


@pytest.mark.parametrize("model_type", sorted(families()))
def test_defaults_are_transformers(model_type: str) -> None:
    """Of all keys but those that every checkpoint has."""
    made = CONFIG_MAPPING[model_type]()
    full = made.to_dict()
    inner = full.get("text_config", full)
    bare = {key: inner[key] for key in (*NEEDED, "num_key_value_heads")}
    assert spec({"model_type": inner["model_type"], **bare}) == spec(inner)
    if model_type == "gemma3":
        assert spec({"model_type": "gemma3", "text_config": {"rms_norm_eps": 1e-6}}) == spec(full)


@pytest.mark.parametrize("variant", FIRSTS, ids=lambda variant: variant.name)
def test_every_missing_tensor_is_named(variant: Variant) -> None:
    _, checkpoint = variant.make()
    read = [name for name in checkpoint.names() if "vision" not in name and "multi_modal" not in name]
    ends = [name for name in read if ".layers." not in name]
    tied = spec(dict(checkpoint.config)).tied
    for name in ends + [name for name in read if ".layers.1." in name]:
        if tied and name == "lm_head.weight":
            build(checkpoint.without(name), CONFIG)
            continue
        with pytest.raises(ModelError) as error:
            build(checkpoint.without(name), CONFIG)
        assert f"the checkpoint has no tensor {name!r} (expected shape [" in str(error.value)


@pytest.mark.parametrize("variant", FIRSTS, ids=lambda variant: variant.name)
def test_every_mis_shaped_tensor_is_named_with_both_shapes(variant: Variant) -> None:
    _, checkpoint = variant.make()
    for name in checkpoint.names():
        if ".layers.2." not in name or "vision" in name:
            continue
        right = list(checkpoint.tensor(name).shape)
        wrong = [right[0] + 1, *right[1:]]
        with pytest.raises(ModelError) as error:
            build(checkpoint.replacing(name, torch.zeros(wrong)), CONFIG)
        assert f"tensor {name!r} has shape {wrong}, expected {right}" in str(error.value)


@pytest.mark.parametrize("key", NEEDED)
@pytest.mark.parametrize("variant", FIRSTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("wrong", [None, "7", 0, -3, 2.5, True])
def test_a_missing_or_wrong_size_is_named(variant: Variant, key: str, wrong: object) -> None:
    given = dict(variant.make()[1].config)
    if variant.model_type == "gemma3":
        given["text_config"] = {**given["text_config"], key: wrong}
    else:
        given[key] = wrong
    with pytest.raises(ModelError, match=f"config.json: {key} must be a positive integer, is {wrong!r}"):
        spec(given)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("llama", {"hidden_act": "relu9"}, "hidden_act 'relu9' is not served; served: silu"),
        ("llama", {"attention_bias": "yes"}, "attention_bias must be true or false"),
        ("llama", {"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
        ("llama", {"head_dim": 15}, "head_dim must be even, is 15"),
        ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
        ("llama", {"rope_parameters": [1]}, "rope_parameters must be an object"),
        ("mistral", {"sliding_window": "wide"}, "sliding_window must be a positive integer, is 'wide'"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "sliding_window must be a positive integer, is None"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "layer_types must be a list of num_hidden_layers 4 names"),
        ("qwen3", {"layer_types": ["full_attention"] * 3 + ["linear"]}, "layer_types 'linear' is not served"),
        (
            "qwen2-windows",
            {"max_window_layers": 1.5, "layer_types": None},
            "max_window_layers must be a positive integer",
        ),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not served"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping must be over 0"),
        ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar must be over 0"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not served"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not served"),
        ("gemma3-inside", {"text_config": None}, "text_config is missing"),
        ("gemma3-inside", {"text_config": 3}, "text_config must be an object"),
        ("phi3", {"partial_rotary_factor": 0.1, "rope_parameters": None}, "partial_rotary_factor 0.1 of head_dim 96"),
        ("phi3", {"partial_rotary_factor": 2, "rope_parameters": None}, "partial_rotary_factor 2.0 of head_dim 96"),
        ("olmo2", {"rope_parameters": {"rope_type": "proportional"}}, "rope_type 'proportional' is not served"),
    ],
)
def test_what_is_wrong_or_not_served_is_named(name: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        spec(config(name, **changes))


def test_windows_are_where_each_family_has_them() -> None:
    full = None
    assert seen("mistral") == [WINDOW] * 4
    assert seen("mistral-whole") == [full] * 4
    assert seen("qwen2") == [full] * 4
    assert seen("qwen2-windows") == [full, WINDOW, WINDOW, WINDOW]
    assert seen("qwen2-types") == [WINDOW, full, WINDOW, full]
    assert seen("qwen3-windows", use_sliding_window=False, layer_types=None) == [full] * 4
    assert seen("gemma2", layer_types=None) == [WINDOW, full, WINDOW, full]
    assert seen("gemma3-stretched", layer_types=None) == [WINDOW] * 5 + [full, WINDOW]
    assert seen("gemma3", layer_types=None, sliding_window_pattern=2) == [WINDOW, full, WINDOW, full]
    assert seen("phi3") == [full] * 4
    assert seen("phi3-window") == [WINDOW] * 4


def test_gemma_3_turns_its_layers_by_two_tables_in_configurations_of_either_age() -> None:
    new = config("gemma3-stretched")
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types")}
    scaling = {"rope_type": "linear", "factor": 8.0}
    stretched = spec({**old, "rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": scaling})
    assert {turn.theta for turn in spec(old).rotary} == {1e6, 1e4}
    local, whole = stretched.rotaries
    assert local == RotarySpec(dim=80, theta=2e4)
    assert (whole.theta, whole.scaling is not None) == (5e5, True)
    assert [turn == whole for turn in stretched.rotary] == [layer.window is None for layer in stretched.attention]


def test_a_gemma_3_checkpoint_of_either_naming_is_read() -> None:
    """transformers 5 puts the language model inside `model`; the published files put it outside."""
    variant = replace(
        BY_NAME["gemma3-inside"],
        changes={**BY_NAME["gemma3-inside"].changes, "num_hidden_layers": 2, "layer_types": None},
    )
    _, new = variant.make()
    old = {
        f"language_model.{name}"
        if name == "lm_head.weight"
        else name.replace("model.language_model.", "language_model.model."): new.tensor(name)
        for name in new.names()
    }
    build(new, CONFIG)
    build(MemoryCheckpoint(new.config, old), CONFIG)
    with pytest.raises(ModelError, match=r"no tensor 'model\.language_model\.embed_tokens\.weight'"):
        build(MemoryCheckpoint(new.config, {}), CONFIG)


def test_layers_of_one_kind_share_their_spec_and_their_table() -> None:
    gemma, plain = spec(config("gemma3")), spec(config("llama"))
    assert (len(gemma.attentions), len(gemma.rotaries)) == (2, 2)
    assert (len(plain.attentions), len(plain.rotaries)) == (1, 1)
