"""Rotary frequencies and the table of cosines and sines.

All in float32, step by step as the models were trained: a table of better precision would be another model at long
positions.
"""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of low frequencies (`rope_type` llama3)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RotarySpec:
    """`dim` rotated values a head (in two halves), base `theta`."""

    dim: int
    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RotaryTable:
    """`cos` and `sin`, float32 [positions, dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


def frequencies(spec: RotarySpec) -> torch.Tensor:
    """Radians a position for each pair, float32 [dim / 2] (Su et al., 2021)."""
    inverse = 1.0 / (spec.theta ** (torch.arange(0, spec.dim, 2, dtype=torch.int64).float() / spec.dim))
    return inverse if spec.scaling is None else _llama3(inverse, spec.scaling)


def _llama3(inverse: torch.Tensor, s: Llama3Scaling) -> torch.Tensor:
    """Wavelengths beyond the original context are stretched by `factor`, short ones kept, those between
    interpolated.
    """
    wavelength = 2 * math.pi / inverse
    smooth = (s.original_max_position / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    between = (1 - smooth) * inverse / s.factor + smooth * inverse
    low, high = s.original_max_position / s.low_freq_factor, s.original_max_position / s.high_freq_factor
    stretched = torch.where(wavelength > low, inverse / s.factor, inverse)
    return torch.where((wavelength <= low) & (wavelength >= high), between, stretched)


def rotary_table(spec: RotarySpec, positions: int) -> RotaryTable:
    """The table for positions 0 .. positions - 1."""
    angles = torch.arange(positions).float()[:, None] * frequencies(spec)
    return RotaryTable(cos=angles.cos(), sin=angles.sin())
