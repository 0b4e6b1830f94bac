"""How rotary frequencies are changed to reach beyond the length that a model was trained at.

Each kind is the arithmetic of transformers' function of that name, step by step in float32, since the models were
trained with it. Two kinds depend on the length of what is computed (`dynamic`, `longrope`). transformers looks at each
sequence as it grows and turns keys that are cached already by other angles than those to come; a served table must not
change under running requests, so that it is built once, for the longest sequence that is served (`length`), as vLLM
does. Where `length` is within the original one, the results are transformers'.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch


class Scaling(Protocol):
    """A kind of scaling. Equal ones compare equal."""

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """Radians a position for each pair, float32 [dim / 2], where sequences of up to `length` tokens are served."""

    def regime(self, length: int) -> int:
        """Lengths of equal regimes have equal frequencies."""


def powers(dim: int, theta: float) -> torch.Tensor:
    """theta ** (2i / dim), float32 [dim / 2]: positions a radian, for each pair (Su et al., 2021)."""
    return theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor` (`rope_type` linear)."""

    factor: float
    amplitude: float = 1.0

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """As the protocol says."""
        return 1.0 / powers(dim, theta) / self.factor

    def regime(self, length: int) -> int:
        """One for all lengths."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicScaling:
    """Beyond `original_max_position` the base grows with the length (`rope_type` dynamic)."""

    factor: float
    original_max_position: int
    amplitude: float = 1.0

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """As the protocol says."""
        stretch = self.factor * self.regime(length) / self.original_max_position - (self.factor - 1)
        return 1.0 / powers(dim, theta * stretch ** (dim / (dim - 2)))

    def regime(self, length: int) -> int:
        """The length, from the original one on."""
        return max(length, self.original_max_position)


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): pairs that turn more than `beta_fast` times within the original length are kept, those
    that turn less than `beta_slow` times are stretched by `factor`, between lies a ramp over the pairs (its ends whole
    numbers where `truncate`).
    """

    factor: float
    original_max_position: int
    amplitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """As the protocol says."""
        wavelengths = powers(dim, theta)
        kept = 1 - self._ramp(dim, theta)
        return 1.0 / (self.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept

    def regime(self, length: int) -> int:
        """One for all lengths."""
        return 0

    def _ramp(self, dim: int, theta: float) -> torch.Tensor:
        low, high = (self._pair(turns, dim, theta) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        width = high - low or 0.001
        return ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)

    def _pair(self, turns: float, dim: int, theta: float) -> float:
        """The pair, not whole, that turns so many times within the original length."""
        return dim * math.log(self.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): a divisor for each pair, from one list of dim / 2 up to the original length and
    from another beyond.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position: int
    amplitude: float

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """As the protocol says."""
        divisors = torch.tensor(self.long if self.regime(length) else self.short, dtype=torch.float32)
        return 1.0 / (divisors * powers(dim, theta))

    def regime(self, length: int) -> int:
        """1 beyond the original length."""
        return int(length > self.original_max_position)


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: wavelengths beyond the original context are stretched by `factor`, short ones kept, those between
    interpolated (`rope_type` llama3).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    amplitude: float = 1.0

    def frequencies(self, dim: int, theta: float, length: int) -> torch.Tensor:
        """As the protocol says."""
        inverse = 1.0 / powers(dim, theta)
        wavelength = 2 * math.pi / inverse
        span = self.high_freq_factor - self.low_freq_factor
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / span
        between = (1 - smooth) * inverse / self.factor + smooth * inverse
        low = self.original_max_position / self.low_freq_factor
        high = self.original_max_position / self.high_freq_factor
        stretched = torch.where(wavelength > low, inverse / self.factor, inverse)
        return torch.where((wavelength <= low) & (wavelength >= high), between, stretched)

    def regime(self, length: int) -> int:
        """One for all lengths."""
        return 0
