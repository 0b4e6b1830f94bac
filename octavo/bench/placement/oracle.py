"""What of an imbalance is the trace: prompts are indivisible, and a worker that has a long one has it alone.

Each worker is taken as a basin that holds the prefill seconds given to it and loses one a second while it holds any; decodes cost nothing.
What each request computes is what it computed in a run, so that every hit of that run is kept wherever a request goes. Over these, requests
are given out by one who knows all sizes: each to the basin that holds least as it comes, or, knowing a minute's requests before it begins,
longest first to the basin with the least so far (Graham's LPT, 1969). Neither is proven to be the best. `single` needs no choice at all: it
is what the prompt with the most of a minute makes of it alone, with as much outstanding in all as in the run. A run's own looks leave out
what a step under way computes, so that they tell somewhat less than basins hold.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from octavo.bench.placement.clock import SimClock
from octavo.bench.placement.measures import MINUTE, imbalances, percentile
from octavo.bench.placement.simulation import Run, Setup
from octavo.bench.placement.worker import SimWorker


class Job(NamedTuple):
    """A request's prefill: when it comes, and its seconds alone on a worker."""

    at: float
    seconds: float


def jobs(run: Run, setup: Setup) -> list[Job]:
    """What the run's requests computed, in the order in which they came."""
    stats = SimWorker("", setup.spec, SimClock(), seed=0, delay=0.0).scheduler.stats(0.0)
    found = []
    for each in run.outcomes:
        own = each.prompt_tokens - each.cached_tokens
        pairs = own * (2 * each.prompt_tokens - own) // 2
        found.append(Job(each.at, own / stats.prefill_tokens_per_s + stats.pair_s * pairs))
    return sorted(found)


def area(at: float, seconds: float, begin: float, end: float) -> float:
    """The integral from `begin` to `end` of what is left of so much that begins at `at` and goes on undisturbed."""
    first, last = max(at, begin), min(at + seconds, end)
    return (2 * (at + seconds) - first - last) / 2 * (last - first) if last > first else 0.0


def least_held(given: Sequence[Job], workers: int) -> list[int]:
    """Each to the worker that holds least as it comes."""
    until, chosen = [0.0] * workers, []
    for at, seconds in given:
        worker = min(range(workers), key=lambda one: (max(until[one], at), one))
        until[worker] = max(until[worker], at) + seconds
        chosen.append(worker)
    return chosen


def longest_first(given: Sequence[Job], workers: int) -> list[int]:
    """A minute's longest first, each to the worker that has been given least of that minute."""
    chosen = [0] * len(given)
    for _, numbers in groupby(range(len(given)), key=lambda number: given[number].at // MINUTE):
        held = [0.0] * workers
        for number in sorted(numbers, key=lambda number: (-given[number].seconds, number)):
            chosen[number] = worker = min(range(workers), key=lambda one: (held[one], one))
            held[worker] += given[number].seconds
    return chosen


Areas = list[list[float]]

ORACLES: dict[str, Callable[[Sequence[Job], int], list[int]]] = {
    "least_held": least_held,
    "longest_first": longest_first,
}


def held(given: Sequence[Job], chosen: Sequence[int], workers: int, windows: Sequence[tuple[float, float]]) -> Areas:
    """Of each window, the integral of what each worker holds."""
    areas, until = [[0.0] * workers for _ in windows], [0.0] * workers
    for (at, seconds), worker in zip(given, chosen, strict=True):
        began = max(until[worker], at)
        until[worker] = began + seconds
        for row, (begin, end) in zip(areas, windows, strict=True):
            waits = max(0.0, min(began, end) - max(at, begin)) * seconds
            row[worker] += waits + area(began, seconds, begin, end)
    return areas


def _windows(run: Run) -> list[tuple[float, float]]:
    """Of the looks at what is outstanding, as measures.imbalances takes them."""
    times = [at for at, _ in run.outstanding]
    spans = [list(within) for _, within in groupby(times, key=lambda at: at // MINUTE)]
    return [(span[0], span[-1]) for span in spans if span[-1] > span[0]]


def single(given: Sequence[Job], run: Run, windows: Sequence[tuple[float, float]]) -> list[float]:
    """Of each window, what the request with the most of it alone makes of the ratio, with as much outstanding in all as in the run."""
    found = []
    for begin, end in windows:
        mean = fmean(fmean(looks) for at, looks in run.outstanding if begin <= at <= end)
        most = max((area(at, seconds, begin, end) for at, seconds in given), default=0.0) / (end - begin)
        if mean:
            found.append(most / mean)
    return found


def told(run: Run, setup: Setup) -> dict[str, dict[str, float]]:
    """The ratio's p95 over minutes and its median: of the run, of one prompt alone, and of each oracle with the same work."""
    given, windows = jobs(run, setup), _windows(run)
    ratios = {"run": imbalances(run), "single_prompt": single(given, run, windows)}
    for name, oracle in ORACLES.items():
        areas = held(given, oracle(given, setup.workers), setup.workers, windows)
        ratios[name] = [max(row) / fmean(row) for row in areas if any(row)]
    return {
        name: {"p95": percentile(found, 0.95), "median": percentile(found, 0.5)}
        for name, found in ratios.items()
        if found
    }
