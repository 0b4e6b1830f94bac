"""adapter_config.json as PEFT's LoraConfig writes it: what is served is parsed, what would be left out of the result is refused.

The rank and scale of a module are those of PEFT: `r` and `lora_alpha`, unless a key of rank_pattern or alpha_pattern ends the module's
path; alpha / rank, with rsLoRA alpha / sqrt(rank).
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from worker.adapters.errors import AdapterInvalid, shown
from worker.adapters.files import read_whole, regular
from worker.adapters.patterns import compiled

NAME = "adapter_config.json"
MAX_BYTES = 1 << 20
_SERVED_TASKS = (None, "CAUSAL_LM")
_BASE_CHANGED = (
    "pissa",
    "olora",
    "corda",
    "loftq",
    "lora_ga",
)  # begin of init_lora_weights that alter the base's own weights
_T = TypeVar("_T")
# What changes the result and is not served, wherever it is neither absent nor one of these.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "lora_bias": (False,),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "modules_to_save": ([],),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "monteclora_config": ({},),
    "velora_config": ({},),
    "kasa_config": ({},),
    "arrow_config": ({},),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftConfig:
    """`raw` is all that the file says. `targets` are names that ended the modules' paths when it was trained, and `layers` the only layers
    it was trained in; None where it does not tell so plainly."""

    rank: int
    alpha: float
    rslora: bool
    ranks: Mapping[re.Pattern[str], int]
    alphas: Mapping[re.Pattern[str], float]
    targets: tuple[str, ...] | None
    layers: frozenset[int] | None
    raw: Mapping[str, Any]

    def rank_of(self, module: str) -> int:
        """The rank of the module at this path (without `base_model.model.`)."""
        return _matched(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What the product is multiplied by."""
        rank, alpha = self.rank_of(module), _matched(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def _matched(patterns: Mapping[re.Pattern[str], _T], module: str, default: _T) -> _T:
    return next((value for pattern, value in patterns.items() if pattern.match(module)), default)


def read_config(directory: Path) -> PeftConfig:
    """The configuration of the adapter in `directory`. Raises AdapterNotFound, and AdapterInvalid naming the key at fault."""
    raw = _object(directory)
    _refuse_unserved(raw)
    layers = raw.get("layers_to_transform")
    targets = raw.get("target_modules")
    plain = (
        isinstance(targets, list) and all(isinstance(each, str) for each in targets) and not raw.get("exclude_modules")
    )
    return PeftConfig(
        rank=_rank(raw, "r"),
        alpha=_alpha(raw, "lora_alpha"),
        rslora=raw.get("use_rslora") is True,
        ranks={pattern: _rank(section, key) for pattern, section, key in _patterns(raw, "rank_pattern")},
        alphas={pattern: _alpha(section, key) for pattern, section, key in _patterns(raw, "alpha_pattern")},
        targets=tuple(targets) if plain and isinstance(targets, list) else None,
        layers=None if layers is None else frozenset(_layers(layers)),
        raw=raw,
    )


def _invalid(message: str) -> AdapterInvalid:
    return AdapterInvalid(f"{NAME}: {message}")


def _object(directory: Path) -> dict[str, Any]:
    with regular(directory / NAME) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise _invalid(f"over the {MAX_BYTES} bytes that are read")
        data = bytearray(size)
        read_whole(file, NAME, memoryview(data))
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _invalid("not JSON") from error
    if not isinstance(raw, dict):
        raise _invalid("not an object")
    return raw


def _refuse_unserved(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise _invalid(f"peft_type {_quoted(raw.get('peft_type'))} is not served; served: LORA")
    if raw.get("task_type") not in _SERVED_TASKS:
        raise _invalid(f"task_type {_quoted(raw['task_type'])} is not served; served: CAUSAL_LM")
    for key, value in raw.items():
        known = _REFUSED.get(key, (False,) if key.startswith("use_") and key != "use_rslora" else None)
        if known is not None and value is not None and value not in known:
            raise _invalid(f"{shown(key)} {_short(value)} is not served")
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_BASE_CHANGED):
        raise _invalid(
            f"init_lora_weights {_quoted(start)} changed the base's own weights; save it with path_initial_model_for_weight_conversion"
        )


def _short(value: Any) -> str:
    return shown(json.dumps(value))


def _quoted(value: Any) -> str:
    return shown(repr(value))


def _rank(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or value < 1:
        raise _invalid(f"{key} must be a positive integer, is {_short(value)}")
    return value


def _alpha(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise _invalid(f"{key} must be a finite number, is {_short(value)}")
    return float(value)


def _layers(value: Any) -> list[int]:
    layers = value if isinstance(value, list) else [value]
    if not all(type(each) is int and each >= 0 for each in layers):
        raise _invalid(f"layers_to_transform must be layers' numbers, is {_short(value)}")
    return layers


def _patterns(raw: Mapping[str, Any], name: str) -> list[tuple[re.Pattern[str], Mapping[str, Any], str]]:
    """The patterns in order, each with where its value stands."""
    section = raw.get(name) or {}
    if not isinstance(section, Mapping):
        raise _invalid(f"{name} must be an object")
    try:
        patterns = compiled(section)
    except ValueError as error:
        raise _invalid(f"{name}: {error}") from error
    return [(pattern, section, key) for pattern, key in zip(patterns, section, strict=True)]
