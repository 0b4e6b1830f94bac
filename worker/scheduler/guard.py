"""The latency guard: how much of a prompt a step may compute beside its decodes, so that it stays under the target time."""

import math
from dataclasses import dataclass

from worker.scheduler.config import SchedulerConfig
from worker.scheduler.steptime import StepShape, StepTimes

AUTO = 2.0  # the target, in times that the decodes of the step would take alone


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """A chunk of `length` positions from `start` on, or of fewer. Whole it draws `samples` tokens, and in part none; where it is `scored`
    each position gives the log-probability of the next."""

    start: int
    length: int
    samples: int = 1
    scored: bool = False


class Guard:
    """A policy over predicted times. Where nothing decodes there is no target, unless several tenants are here: then a step is no longer
    than one of them may wait for its end."""

    def __init__(self, times: StepTimes, config: SchedulerConfig) -> None:
        self._times = times
        self._target_s = config.target_itl_s
        self._least_s = config.least_itl_s

    def target(self, decodes: StepShape, *, several: bool = False) -> float:
        """Seconds that the step may take which has these decodes, or infinity. `several`: tenants are here."""
        if not decodes.rows and not several:
            return math.inf
        if self._target_s is not None:
            return self._target_s
        return max(self._least_s, AUTO * self._times.predict(decodes)) if decodes.rows else AUTO * self._least_s

    def longest(self, step: StepShape, want: Want, *, most: int, target: float) -> int:
        """Positions of the wanted chunk, at most `most`, that keep the step under `target`."""
        if target == math.inf or not most or self._fits(step, want, most, target):
            return most
        fits, over = 0, most
        while over - fits > 1:
            middle = (fits + over) // 2
            if self._fits(step, want, middle, target):
                fits = middle
            else:
                over = middle
        return fits

    def _fits(self, step: StepShape, want: Want, length: int, target: float) -> bool:
        samples = (want.samples if length == want.length else 0) + (length if want.scored else 0)
        return self._times.predict(step.plus(want.start, length, samples)) <= target
