"""From the moments at which tokens came to the field's usual figures.

Definitions (those of vLLM's `benchmark_serving`): TTFT is the time from sending a request to its first token. ITL are the gaps between
one piece of a stream and the next, over all streams together. TPOT is a request's time after its first token by the tokens after the
first. Throughputs are over the time from the first request's start to the last one's end.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PERCENTILE = 99


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One answered request, in seconds of one clock. `pieces`: when each piece of its stream came, at least one."""

    start: float
    pieces: tuple[float, ...]
    end: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.pieces[0] - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there was only one."""
        if self.output_tokens < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.output_tokens - 1)

    @property
    def itls(self) -> tuple[float, ...]:
        """Seconds between one piece and the next."""
        return tuple(later - earlier for earlier, later in pairwise(self.pieces))


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest ranks (numpy's default). `values` must not be empty."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """mean, median and p99 in milliseconds; None where nothing was measured."""
    if not seconds:
        return {f"mean_{name}_ms": None, f"median_{name}_ms": None, f"p{PERCENTILE}_{name}_ms": None}
    figures = {
        "mean": statistics.fmean(seconds),
        "median": statistics.median(seconds),
        f"p{PERCENTILE}": percentile(seconds, PERCENTILE),
    }
    return {f"{key}_{name}_ms": round(value * 1000, 3) for key, value in figures.items()}


def summary(timelines: Sequence[Timeline]) -> dict[str, float | int | None]:
    """The figures of one run. `timelines` must not be empty."""
    duration = max(t.end for t in timelines) - min(t.start for t in timelines)
    prompt, output = sum(t.prompt_tokens for t in timelines), sum(t.output_tokens for t in timelines)
    return {
        "completed": len(timelines),
        "duration_s": round(duration, 3),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": round(len(timelines) / duration, 4),
        "output_throughput": round(output / duration, 3),
        "total_token_throughput": round((prompt + output) / duration, 3),
        **_spread("ttft", [t.ttft for t in timelines]),
        **_spread("tpot", [t.tpot for t in timelines if t.tpot is not None]),
        **_spread("itl", [gap for t in timelines for gap in t.itls]),
    }
