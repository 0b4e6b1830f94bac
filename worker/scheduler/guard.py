"""The latency guard: how much of a prompt a step may compute beside its decodes, so that it stays under the target time."""

import math

from worker.scheduler.config import SchedulerConfig
from worker.scheduler.steptime import StepShape, StepTimes

AUTO = 2.0  # the target, in times that the decodes of the step would take alone


class Guard:
    """A policy over predicted times. Where nothing decodes there is no target."""

    def __init__(self, times: StepTimes, config: SchedulerConfig) -> None:
        self._times = times
        self._target_s = config.target_itl_s
        self._least_s = config.least_itl_s

    def target(self, decodes: StepShape) -> float:
        """Seconds that the step may take which has these decodes, or infinity."""
        if not decodes.rows:
            return math.inf
        if self._target_s is not None:
            return self._target_s
        return max(self._least_s, AUTO * self._times.predict(decodes))

    def longest(self, step: StepShape, *, start: int, wanted: int, most: int, samples: int, target: float) -> int:
        """Positions of a chunk from `start` on, of at most `most`, that keep the step under `target`.

        With all that is `wanted` it draws `samples` tokens, and with less none.
        """
        if target == math.inf or not most or self._fits(step.plus(start, most, samples * (most == wanted)), target):
            return most
        fits, over = 0, most
        while over - fits > 1:
            middle = (fits + over) // 2
            if self._fits(step.plus(start, middle), target):
                fits = middle
            else:
                over = middle
        return fits

    def _fits(self, step: StepShape, target: float) -> bool:
        return self._times.predict(step) <= target
