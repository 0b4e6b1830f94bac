"""Gemma 3's language model, alone (`gemma3_text`) or out of a checkpoint with a vision tower (`gemma3`), which then
serves text alone.
"""

from collections.abc import Mapping
from dataclasses import replace

from kernels.rotary.table import RotarySpec
from worker.models.errors import ModelError
from worker.models.gemma2 import gemma, names
from worker.models.reading import Config, integer, optional, refused, section, sliding
from worker.models.rope import completed, rotary_spec
from worker.models.spec import DecoderSpec, Family

_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_ROPE = ("rope_theta", "rope_local_base_freq", "rope_scaling", "rope_parameters")


def spec(config: Config) -> DecoderSpec:
    """Gemma3TextConfig's keys and defaults."""
    refused(config, "use_bidirectional_attention", "attn_logit_softcapping")
    every = integer(config, "sliding_window_pattern", 6)
    slides = sliding(config, [bool((number + 1) % every) for number in range(integer(config, "num_hidden_layers"))])
    flat = {key: value for key, value in config.items() if key not in _ROPE}
    plain = gemma(
        {"max_position_embeddings": 131072, **flat},
        slides,
        attn_softcap=None,
        logit_softcap=optional(config, "final_logit_softcapping"),
    )
    turns = {slid: _rotary(config, plain.attention[0].head_dim, slid) for slid in set(slides)}
    return replace(plain, rotary=tuple(turns[slid] for slid in slides), head_norm="head")


def _rotary(config: Config, head_dim: int, local: bool) -> RotarySpec:
    """Layers that slide are turned by a base of their own and never stretched, unless the configuration tells."""
    key, theta = ("sliding_attention", _LOCAL_THETA) if local else ("full_attention", _GLOBAL_THETA)
    former = {"rope_theta": config.get("rope_local_base_freq" if local else "rope_theta")}
    scaling = {} if local else section(config, "rope_scaling")
    rope = {**former, **scaling, **section(section(config, "rope_parameters"), key)}
    return rotary_spec(completed(rope, {"max_position_embeddings": 131072, **config}), head_dim, theta)


def inner_spec(config: Config) -> DecoderSpec:
    """Of a configuration with `text_config`, which leaves out what is Gemma3TextConfig's default."""
    inner = section(config, "text_config")
    if not isinstance(inner, Mapping) or not inner:
        raise ModelError("config.json: text_config is missing (model_type gemma3)")
    defaults = {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": config.get("tie_word_embeddings"),
    }
    return spec({**defaults, **inner})


def family() -> Family:
    """The row of `gemma3_text`."""
    return Family(spec=spec, names=(names(),))


def inner_family() -> Family:
    """The row of `gemma3`, by the names that transformers 5 writes and by those of before."""
    return Family(
        spec=inner_spec,
        names=(names("model.language_model"), names("language_model.model", "language_model.lm_head")),
    )
