"""Reading config.json with errors that name the key."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.attention.spec import AttentionSpec
from kernels.weights import Activation
from worker.models.errors import ModelError

Config = Mapping[str, Any]
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_MOST = 2**31 - 1
_FINITE = sys.float_info.max
MAX_LAYERS = 4_096  # a table has an entry for each before any weight is looked for
_LAYER_TYPES = ("full_attention", "sliding_attention")


def integer(config: Config, key: str, default: int | None = None) -> int:
    """A positive integer; `default` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ModelError(f"config.json: {key} must be a positive integer, is {value!r:.60}")
    most = MAX_LAYERS if key == "num_hidden_layers" else _MOST
    if value > most:
        raise ModelError(f"config.json: {key} may be {most}, is {value!r:.60}")
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """A number, neither infinite nor NaN; `default` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be a number, is {value!r:.60}")
    if not -_FINITE <= value <= _FINITE:  # an int beyond every float is none either
        raise ModelError(f"config.json: {key} must be finite, is {value!r:.60}")
    return float(value)


def positive(config: Config, key: str, default: float | None = None) -> float:
    """A number over zero."""
    value = number(config, key, default)
    if not value > 0:
        raise ModelError(f"config.json: {key} must be over 0, is {value!r}")
    return value


def optional(config: Config, key: str, default: float | None = None) -> float | None:
    """A number over zero, or None where the key is null; `default` where it is absent."""
    value = config.get(key, default)
    return None if value is None else positive({key: value}, key)


def flag(config: Config, key: str, default: bool = False) -> bool:
    """True or false; `default` where the key is absent or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be true or false, is {value!r}")
    return value


def numbers(config: Config, key: str, count: int) -> tuple[float, ...]:
    """A list of `count` numbers."""
    value = config.get(key)
    if not isinstance(value, list | tuple) or len(value) != count:
        found = f"{len(value)} values" if isinstance(value, list | tuple) else repr(value)
        raise ModelError(f"config.json: {key} must be a list of {count} numbers, is {found}")
    return tuple(number({key: entry}, key) for entry in value)


def section(config: Config, key: str) -> Config:
    """A nested object; empty where it is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ModelError(f"config.json: {key} must be an object, is {value!r}")
    return value or {}


def one_of(config: Config, key: str, served: Sequence[str], default: str) -> str:
    """One of the served names."""
    value = config.get(key) or default
    if value not in served:
        raise ModelError(f"config.json: {key} {value!r} is not served; served: {', '.join(served)}")
    return str(value)


def refused(config: Config, *keys: str) -> None:
    """Keys that must be absent, null or false, because what they ask for is not served."""
    for key in keys:
        if config.get(key):
            raise ModelError(f"config.json: {key} {config[key]!r} is not served")


def activation(config: Config, key: str, default: str) -> Activation:
    """The MLP's activation."""
    return _ACTIVATIONS[one_of(config, key, tuple(_ACTIVATIONS), default)]


def attention(config: Config, *, scale: float | None = None, softcap: float | None = None) -> AttentionSpec:
    """Heads and their sizes; `scale` is by default that of head_dim."""
    heads = integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    head_dim = integer(config, "head_dim", integer(config, "hidden_size") // heads)
    if head_dim % 2:
        raise ModelError(f"config.json: head_dim must be even, is {head_dim}")
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5 if scale is None else scale,
        softcap=softcap,
    )


def sliding(config: Config, default: Sequence[bool]) -> tuple[bool, ...]:
    """Which layers see a window alone, from `layer_types`; `default` (one entry a layer) where it is absent or null."""
    types = config.get("layer_types")
    if types is None:
        return tuple(default)
    if not isinstance(types, list | tuple) or len(types) != len(default):
        raise ModelError(f"config.json: layer_types must be a list of num_hidden_layers {len(default)} names")
    return tuple(one_of({"layer_types": kind}, "layer_types", _LAYER_TYPES, "") == _LAYER_TYPES[1] for kind in types)


def window(config: Config, key: str, layers: Sequence[bool], default: int | None = None) -> int | None:
    """The window of sliding layers: an integer where there are any. `default` where the key is absent."""
    value = config.get(key, default)
    if value is None and not any(layers):
        return None
    return integer({key: value}, key)
