"""Running estimates of step time and output length, from what steps took and choices gave."""

from worker.scheduler.steptime import StepShape, StepTimes

SHARE = 0.1  # weight of the newest value
CLIP = 4.0  # one value counts as at most so many times the estimate, and no less than its inverse


class Average:
    """A clipped, exponentially weighted mean of positive values. The first value replaces the assumption."""

    def __init__(self, assumed: float) -> None:
        self.value = assumed
        self._measured = False

    def add(self, value: float) -> None:
        """Count a value in; those that are not positive say nothing."""
        if value <= 0:
            return
        if self._measured:
            value = min(max(value, self.value / CLIP), self.value * CLIP)
            self.value += SHARE * (value - self.value)
        else:
            self.value, self._measured = value, True


class Estimates:
    """Times are seconds."""

    def __init__(self, times: StepTimes, *, step_tokens: int, output_tokens: float) -> None:
        self._times = times
        self._step_tokens = step_tokens
        self._outputs = Average(output_tokens)
        self._retired_at: float | None = None

    @property
    def full_step_s(self) -> float:
        """The time of a step that does nothing but prefill."""
        return self._times.predict(StepShape().plus(0, self._step_tokens, 1))

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed in a second in such steps."""
        return self._step_tokens / self.full_step_s

    @property
    def output_tokens(self) -> float:
        """Outputs of a choice."""
        return self._outputs.value

    def step(self, shape: StepShape, *, planned_at: float, retired_at: float) -> None:
        """A step retired. With one step ahead, its time begins when the one before it retired."""
        began = planned_at if self._retired_at is None else max(planned_at, self._retired_at)
        self._retired_at = retired_at
        self._times.observe(shape, retired_at - began)

    def ended(self, outputs: int) -> None:
        """A choice ended with so many outputs."""
        self._outputs.add(outputs)
