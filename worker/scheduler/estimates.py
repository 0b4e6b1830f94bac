"""Running estimates of step time, prefill rate and output length, from what steps took."""

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

    def __init__(self, *, step_s: float, prefill_tokens_per_s: float, output_tokens: float) -> None:
        self._step = Average(step_s)
        self._prefill = Average(prefill_tokens_per_s)
        self._outputs = Average(output_tokens)
        self._retired_at: float | None = None

    @property
    def step_s(self) -> float:
        """A step's time."""
        return self._step.value

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed in a second, in steps that are mostly prefill."""
        return self._prefill.value

    @property
    def output_tokens(self) -> float:
        """Outputs of a choice."""
        return self._outputs.value

    def step(self, *, planned_at: float, retired_at: float, prefill_tokens: int, decode_tokens: int) -> None:
        """A step retired. With one step ahead, its time begins when the one before it retired."""
        began = planned_at if self._retired_at is None else max(planned_at, self._retired_at)
        self._retired_at = retired_at
        took = retired_at - began
        self._step.add(took)
        if took > 0 and prefill_tokens > decode_tokens:
            self._prefill.add(prefill_tokens / took)

    def ended(self, outputs: int) -> None:
        """A choice ended with so many outputs."""
        self._outputs.add(outputs)
