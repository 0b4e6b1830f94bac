"""Rotary settings from a GGUF file: base and scaling are keys, frequency factors are tensors."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = frozenset({FREQS, LONG, SHORT})
Factors = Mapping[str, npt.NDArray[np.float32]]

# The four numbers of the llama3 rotary scaling are not in the file, only the frequency factors that come of them; these three never vary.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def short(value: float) -> float:
    """The shortest decimal with the same float32: the file holds 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def base(keys: Metadata) -> float:
    """The base of the rotary frequencies."""
    return short(keys.number("rope.freq_base", 10_000.0))


def rotary(keys: Metadata, factors: Factors) -> dict[str, Any]:
    """`rope_theta` and, where there is one, `rope_scaling` of a model whose layers are all alike.

    `keys` are the architecture's own, `factors` the contents of the FACTOR_TENSORS that the file has. Raises SourceError for a
    scaling that is not served.
    """
    theta = base(keys)
    if FREQS in factors:
        return {"rope_theta": theta, "rope_scaling": _llama3(keys, theta, factors[FREQS])}
    scaling = _longrope(keys, factors) if LONG in factors or SHORT in factors else scaled(keys)
    return {"rope_theta": theta} if scaling is None else {"rope_theta": theta, "rope_scaling": scaling}


def scaled(keys: Metadata) -> dict[str, Any] | None:
    """The scaling that the keys alone describe: none, linear or YaRN."""
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": short(keys.number("rope.scaling.factor"))}
    if kind == "yarn":
        return _yarn(keys)
    name = keys.name("rope.scaling.type")
    raise SourceError(f"{keys.path}: {name} is {kind!r}; expected none, linear, yarn, or longrope with its factors")


def _yarn(keys: Metadata) -> dict[str, Any]:
    for name in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if keys.number(name, 1.0) != 1.0:
            raise SourceError(f"{keys.path}: {keys.name(name)} is {keys.number(name):g}; only 1 is served with YaRN")
    scaling = {
        "rope_type": "yarn",
        "factor": short(keys.number("rope.scaling.factor")),
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length"),
    }
    betas = {f"beta_{end}": f"rope.scaling.yarn_beta_{end}" for end in ("fast", "slow")}
    return scaling | {name: short(keys.number(key)) for name, key in betas.items() if keys.has(key)}


def _longrope(keys: Metadata, factors: Factors) -> dict[str, Any]:
    if LONG not in factors or SHORT not in factors:
        raise SourceError(f"{keys.path}: of the tensors {LONG} and {SHORT} one is missing")
    original = keys.integer("rope.scaling.original_context_length")
    scaling = {
        "rope_type": "longrope",
        "long_factor": [short(value) for value in factors[LONG]],
        "short_factor": [short(value) for value in factors[SHORT]],
        "original_max_position_embeddings": original,
    }
    stretch = keys.integer("context_length") / original
    expected = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    attention = keys.number("rope.scaling.attn_factor", expected)
    return scaling if math.isclose(attention, expected, rel_tol=1e-5) else scaling | {"attention_factor": attention}


def _llama3(keys: Metadata, theta: float, factors: npt.NDArray[np.float32]) -> dict[str, Any]:
    """The scaling whose factors these are: the largest is the scaling's own, and the rest must follow from it."""
    scaling = {"rope_type": "llama3", "factor": short(float(factors.max())), **_LLAMA3}
    expected = llama3_factors(2 * factors.size, theta, scaling)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise SourceError(f"{keys.path}: tensor {FREQS} is not that of a llama3 rotary scaling; no other is served")
    return scaling


def llama3_factors(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """By what each rotary frequency is divided, [head_dim / 2]. Source: transformers' `_compute_llama3_parameters`.

    Wavelengths below original / high stay, those above original / low are divided by `factor`, and between the inverse is blended.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))
