"""Rotary frequencies and the table of cosines and sines.

All in float32, step by step as the models were trained: a table of better precision would be another model at long
positions.
"""

from dataclasses import dataclass

import torch

from kernels.rotary.scaling import Scaling, powers


@dataclass(frozen=True, kw_only=True, slots=True)
class RotarySpec:
    """`dim` rotated values a head (the first ones, in two halves), base `theta`."""

    dim: int
    theta: float
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RotaryTable:
    """`cos` and `sin`, float32 [positions, dim / 2], times the scaling's amplitude."""

    cos: torch.Tensor
    sin: torch.Tensor


def frequencies(spec: RotarySpec, length: int) -> torch.Tensor:
    """Radians a position for each pair, float32 [dim / 2], where sequences of up to `length` tokens are served."""
    if spec.scaling is None:
        return 1.0 / powers(spec.dim, spec.theta)
    return spec.scaling.frequencies(spec.dim, spec.theta, length)


def regime(spec: RotarySpec, length: int) -> int:
    """What of the served length decides the frequencies: equal numbers mean equal tables."""
    return 0 if spec.scaling is None else spec.scaling.regime(length)


def rotary_table(spec: RotarySpec, positions: int, length: int | None = None) -> RotaryTable:
    """The table for positions 0 .. positions - 1, where sequences of up to `length` tokens (by default `positions`)
    are served.
    """
    length = positions if length is None else length
    angles = torch.arange(positions).float()[:, None] * frequencies(spec, length)
    amplitude = 1.0 if spec.scaling is None else spec.scaling.amplitude
    return RotaryTable(cos=angles.cos().mul_(amplitude), sin=angles.sin().mul_(amplitude))
