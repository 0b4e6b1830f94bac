"""What a run comes to."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any, Protocol

from octavo.bench.placement.simulation import Run

MINUTE = 60.0


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank's."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Counted(Protocol):
    """What is known of a request that has ended."""

    @property
    def prompt_tokens(self) -> int:
        """Its prompt's."""

    @property
    def cached_tokens(self) -> int:
        """Of these, what its worker had."""


def hit_rate(outcomes: Iterable[Counted]) -> float:
    """Cached prompt tokens by prompt tokens; 0 where nothing has ended."""
    counts = [(each.cached_tokens, each.prompt_tokens) for each in outcomes]
    total = sum(prompt for _, prompt in counts)
    return sum(cached for cached, _ in counts) / total if total else 0.0


def imbalances(run: Run, window: float = MINUTE) -> list[float]:
    """Of each window, the largest of the workers' mean outstanding prefill seconds by the mean of all. Windows without work count not."""
    ratios = []
    for _, looks in groupby(run.outstanding, key=lambda look: look[0] // window):
        means = [fmean(worker) for worker in zip(*(seconds for _, seconds in looks), strict=True)]
        if any(means):
            ratios.append(max(means) / fmean(means))
    return ratios


def summary(run: Run) -> dict[str, Any]:
    """The figures of one run, by the field's names. Times are seconds."""
    ttft, ratios = [each.ttft for each in run.outcomes], imbalances(run)
    counts: dict[str, int] = defaultdict(int)
    for outcome in run.outcomes:
        counts[outcome.worker] += 1
    tpot = [(each.e2e - each.ttft) / (each.output_tokens - 1) for each in run.outcomes if each.output_tokens > 1]
    return {
        "requests": len(run.outcomes),
        "failed": run.failed,
        "hit_rate": hit_rate(run.outcomes),
        "predicted_hit_rate": sum(each.predicted_tokens for each in run.outcomes)
        / sum(each.prompt_tokens for each in run.outcomes),
        "imbalance_p95": percentile(ratios, 0.95) if ratios else 1.0,
        "outstanding_mean": fmean(fmean(seconds) for _, seconds in run.outstanding),
        "ttft_mean": fmean(ttft),
        "ttft_p50": percentile(ttft, 0.5),
        "ttft_p99": percentile(ttft, 0.99),
        "tpot_mean": fmean(tpot) if tpot else 0.0,
        "requests_most": max(counts.values()),
        "requests_least": min(counts.values()),
        "steps": run.steps,
    }
