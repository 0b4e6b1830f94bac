"""What a run comes to."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from octavo.bench.placement.simulation import Run

MINUTE = 60.0


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank's."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def hit_rate(run: Run) -> float:
    """Cached prompt tokens by prompt tokens."""
    return sum(each.cached_tokens for each in run.outcomes) / sum(each.prompt_tokens for each in run.outcomes)


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
        "hit_rate": hit_rate(run),
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
