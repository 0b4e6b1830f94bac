"""Reading config.json with errors that name the key."""

from collections.abc import Mapping
from typing import Any

from kernels.rotary.table import Llama3Scaling, RotarySpec
from worker.models.errors import ModelError

Config = Mapping[str, Any]


def integer(config: Config, key: str, default: int | None = None) -> int:
    """A positive integer; `default` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"config.json: {key} must be a positive integer, is {value!r}")
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """A number; `default` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be a number, is {value!r}")
    return float(value)


def one_of(config: Config, key: str, served: tuple[str, ...], default: str) -> str:
    """One of the served names."""
    value = config.get(key) or default
    if value not in served:
        raise ModelError(f"config.json: {key} {value!r} is not served; served: {', '.join(served)}")
    return str(value)


def rotary(config: Config, head_dim: int, default_theta: float) -> RotarySpec:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    merged = {
        "rope_theta": config.get("rope_theta"),
        **(config.get("rope_scaling") or {}),
        **(config.get("rope_parameters") or {}),
    }
    merged["rope_type"] = merged.get("rope_type") or merged.get("type")
    kind = one_of(merged, "rope_type", ("default", "llama3"), "default")
    if (merged.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1) != 1:
        raise ModelError("config.json: partial_rotary_factor other than 1 is not served")
    scaling = _llama3(merged) if kind == "llama3" else None
    return RotarySpec(dim=head_dim, theta=number(merged, "rope_theta", default_theta), scaling=scaling)


def _llama3(rope: Config) -> Llama3Scaling:
    return Llama3Scaling(
        factor=number(rope, "factor"),
        low_freq_factor=number(rope, "low_freq_factor"),
        high_freq_factor=number(rope, "high_freq_factor"),
        original_max_position=integer(rope, "original_max_position_embeddings"),
    )
