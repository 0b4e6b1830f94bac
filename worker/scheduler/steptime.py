"""How long a step takes: a running model, from what the step computes.

    seconds = fixed + sum over segments of slope * (positions in that segment)
            + sample * samples + context * KV positions read + pair * (query, key) pairs

The segments of positions lie between KNOTS: few positions cost what reading the weights costs, many what multiplying them does. No
parameter is negative, so that more of anything never takes less time.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import mul
from typing import NamedTuple

from worker.plan import StepPlan

KNOTS = (0, 8, 32, 128, 512)  # positions; the last segment has no end
SHARE = 0.05  # of the way from what was predicted to what was measured
CLIP = 1.5  # one measurement counts as at most so many times the prediction, and no less than its inverse
ASSUMED = (0.01, *(1.5e-4 for _ in KNOTS), 5e-5, 1e-6, 1e-7)  # seconds: proportions of a small model on a CPU
REACH = (1.0, 8.0, 24.0, 96.0, 384.0, 512.0, 64.0, 20_000.0, 500_000.0)  # what a feature may come to in a large step
COMMON = 0.3  # the variance of the machine's speed, which all parameters share, beside that of each parameter alone
_SEGMENTS = (*pairwise(KNOTS), (KNOTS[-1], math.inf))
_NONE = (0,) * len(KNOTS)
FLOOR = 0.01  # of a large step: how much a parameter that is near zero still learns


class StepShape(NamedTuple):
    """What decides a step's time.

    `rows` are the positions computed, `samples` the tokens drawn or scored. `context` counts the KV positions that chunks read, each once;
    `pairs` counts the (query, key) pairs of all queries but each chunk's last, so that a decode step has none.
    """

    rows: int = 0
    samples: int = 0
    context: int = 0
    pairs: int = 0

    def plus(self, start: int, length: int, samples: int = 0) -> "StepShape":
        """With a chunk of `length` positions from `start` on, from which `samples` tokens are drawn."""
        if not length:
            return self
        return StepShape(
            self.rows + length,
            self.samples + samples,
            self.context + start + length,
            self.pairs + pairs_of(start, length),
        )

    def joined(self, other: "StepShape") -> "StepShape":
        """Both in one step."""
        return StepShape(*map(sum, zip(self, other, strict=True)))


def pairs_of(start: int, length: int) -> int:
    """(query, key) pairs of `length` positions from `start` on, but the last one's."""
    return (length - 1) * (2 * start + length) // 2 if length else 0


def shape_of(plan: StepPlan) -> StepShape:
    """A plan's."""
    shape = StepShape(samples=len(plan.samples) + sum(job.length for job in plan.prompts))
    for chunk in plan.chunks:
        shape = shape.plus(chunk.start, chunk.length)
    return shape


def features(shape: StepShape) -> list[float]:
    """What each parameter is multiplied by."""
    rows, samples, context, pairs = shape
    segments = [rows - knot if rows < end else end - knot for knot, end in _SEGMENTS if rows > knot]
    return [1.0, *segments, *_NONE[len(segments) :], samples, context, pairs]


def dot(parameters: Iterable[float], values: Iterable[float]) -> float:
    """The time where these are the features."""
    total: float = sum(map(mul, parameters, values))
    return total


class StepTimes:
    """The model. Until something is `measured` only the proportions of its parameters count: the first measurement scales them all."""

    def __init__(self, parameters: Sequence[float] = ASSUMED, *, measured: bool = False) -> None:
        if len(parameters) != len(ASSUMED):
            raise ValueError(f"{len(parameters)} parameters of {len(ASSUMED)}")
        self._parameters = list(parameters)
        self._measured = measured

    @property
    def parameters(self) -> tuple[float, ...]:
        """In the order of the formula; seconds."""
        return tuple(self._parameters)

    @property
    def measured(self) -> bool:
        """Whether it rests on anything that was measured."""
        return self._measured

    def predict(self, shape: StepShape) -> float:
        """Seconds."""
        return dot(self._parameters, features(shape))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step took so long: the prediction for it moves SHARE of the way there, and others as far as they share its terms.

        This is the normalised least mean squares rule (Nagumo and Noda, 1967) with the error clipped, in the metric of a prior under
        which the parameters' errors, in units of what they are now, have a part of their own and a part in COMMON: mostly it is the
        machine that got slower. Times that are not positive say nothing.
        """
        if seconds <= 0:
            return
        values = features(shape)
        predicted = dot(self._parameters, values)
        if not self._measured:
            self._parameters = [each * seconds / predicted for each in self._parameters]
            self._measured = True
            return
        error = min(max(seconds, predicted / CLIP), predicted * CLIP) - predicted
        scales = self._scales()
        common = COMMON * dot(scales, values)
        gains = [scale * (scale * value + common) for scale, value in zip(scales, values, strict=True)]
        step = SHARE * error / dot(gains, values)
        self._parameters = [max(0.0, old + step * gain) for old, gain in zip(self._parameters, gains, strict=True)]

    def _scales(self) -> list[float]:
        large = dot(self._parameters, REACH)
        return [max(old, FLOOR * large / reach) for old, reach in zip(self._parameters, REACH, strict=True)]

    def sequence_s(self, most: int) -> float:
        """Seconds that one more running sequence adds to a decode step, its context apart: the mean from one to `most` of them."""
        few, many = StepShape(rows=1, samples=1), StepShape(rows=most + 1, samples=most + 1)
        return (self.predict(many) - self.predict(few)) / most

    @property
    def pair_s(self) -> float:
        """Seconds that one more (query, key) pair adds to a step."""
        return self._parameters[-1]

    @property
    def context_token_s(self) -> float:
        """Seconds that one more token of context adds to a decode step."""
        return self._parameters[-2]
