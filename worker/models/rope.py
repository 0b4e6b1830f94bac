"""Reading a configuration's rotary settings: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`
(before).
"""

import math
from collections.abc import Callable

from kernels.rotary.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Scaling,
    YarnScaling,
)
from kernels.rotary.table import RotarySpec
from worker.models.errors import ModelError
from worker.models.reading import Config, flag, integer, number, numbers, one_of, optional, positive, section

_Reader = Callable[[Config, int], Scaling | None]


def rotary(config: Config, head_dim: int, default_theta: float) -> RotarySpec:
    """The one rotary embedding of all layers, over whole heads."""
    rope = settings(config)
    if number(rope, "partial_rotary_factor", 1.0) != 1:
        raise ModelError("config.json: partial_rotary_factor other than 1 is not served for this model_type")
    return rotary_spec(rope, head_dim, default_theta)


def settings(config: Config) -> Config:
    """All keys about rotary embeddings in one object, of whichever age the configuration is."""
    top = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    merged = {**top, **section(config, "rope_scaling"), **section(config, "rope_parameters")}
    return completed(merged, config)


def completed(rope: Config, config: Config) -> Config:
    """`rope` with its type under today's name and the lengths that stand beside it. A length before training went on
    that stands outside wins over one inside, as in transformers.
    """
    longest = config.get("max_position_embeddings")
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    return {
        **rope,
        "rope_type": rope.get("rope_type") or rope.get("type"),
        "max_position_embeddings": longest,
        "original_max_position_embeddings": original or longest,
    }


def rotary_spec(rope: Config, dim: int, default_theta: float) -> RotarySpec:
    """`dim` values a head, from completed settings."""
    readers: dict[str, _Reader] = {
        "default": lambda _rope, _dim: None,
        "linear": _linear,
        "dynamic": _dynamic,
        "yarn": _yarn,
        "longrope": _longrope,
        "llama3": _llama3,
    }
    kind = one_of(rope, "rope_type", tuple(readers), "default")
    return RotarySpec(dim=dim, theta=positive(rope, "rope_theta", default_theta), scaling=readers[kind](rope, dim))


def reach(max_positions: int, spec: RotarySpec) -> int:
    """The longest sequence that the model is made for. `max_position_embeddings` counts before linear and dynamic
    scaling, and before YaRN where the factor leads further.
    """
    match spec.scaling:
        case LinearScaling(factor=factor) | DynamicScaling(factor=factor):
            return int(max_positions * factor)
        case YarnScaling(factor=factor, original_max_position=original):
            return max(max_positions, int(original * factor))
        case _:
            return max_positions


def _linear(rope: Config, _dim: int) -> Scaling:
    return LinearScaling(factor=positive(rope, "factor"))


def _dynamic(rope: Config, _dim: int) -> Scaling:
    return DynamicScaling(
        factor=positive(rope, "factor"), original_max_position=integer(rope, "max_position_embeddings")
    )


def _yarn(rope: Config, _dim: int) -> Scaling:
    original = integer(rope, "original_max_position_embeddings")
    factor = _factor(rope, original)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        amplitude=_yarn_amplitude(rope, factor),
        beta_fast=optional(rope, "beta_fast") or 32.0,
        beta_slow=optional(rope, "beta_slow") or 1.0,
        truncate=flag(rope, "truncate", True),
    )


def _factor(rope: Config, original: int) -> float:
    """Given, or told by the two lengths."""
    return positive(rope, "factor", integer(rope, "max_position_embeddings", original) / original)


def _yarn_amplitude(rope: Config, factor: float) -> float:
    """Given, or by YaRN's rule of the factor, or by DeepSeek's with two more numbers."""
    given = optional(rope, "attention_factor")
    whole, part = optional(rope, "mscale_all_dim"), optional(rope, "mscale")
    if given is not None:
        return given
    if whole is not None and part is not None:
        return _grown(factor, part) / _grown(factor, whole)
    return _grown(factor, 1.0)


def _grown(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(rope: Config, dim: int) -> Scaling:
    original = integer(rope, "original_max_position_embeddings")
    factor = _factor(rope, original)
    grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short=numbers(rope, "short_factor", dim // 2),
        long=numbers(rope, "long_factor", dim // 2),
        original_max_position=original,
        amplitude=optional(rope, "attention_factor") or grown,
    )


def _llama3(rope: Config, _dim: int) -> Scaling:
    return Llama3Scaling(
        factor=positive(rope, "factor"),
        low_freq_factor=positive(rope, "low_freq_factor"),
        high_freq_factor=positive(rope, "high_freq_factor"),
        original_max_position=integer(rope, "original_max_position_embeddings"),
    )
