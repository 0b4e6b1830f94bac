"""`octavo bench kernels`: in turns with the reference, rates of the machine in the same process."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from octavo.bench.bound import Limits
from octavo.bench.kernels.cases import Call, Case, all_of
from octavo.bench.kernels.rig import Rig, Step

_FEW_ROWS = 128  # up to which the packed rate is the roof, and beyond which that of a large product


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds of one call: medians over the rounds, and the median of each round's own ratio reference / op."""

    seconds: float
    reference: float
    speedup: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A call, and how many threads torch's own operators have beside it."""

    call: Call
    library_threads: int

    def first(self) -> torch.Tensor | None:
        """The first call's result. Ops may change their inputs in place, so that later ones give something else."""
        torch.set_num_threads(self.library_threads)
        return self.call(0)

    def seconds(self, budget: float) -> float:
        """Of one call, over calls that walk over all layers for `budget` seconds."""
        torch.set_num_threads(self.library_threads)
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < budget or not count:
            self.call(count)
            count += 1
        return spent / count


def timing(mine: Side, reference: Side, rounds: int, seconds: float) -> Timing:
    """In turns, after a call of each that does not count."""
    mine.first(), reference.first()
    pairs = [(mine.seconds(seconds), reference.seconds(seconds)) for _ in range(rounds)]
    return Timing(
        seconds=statistics.median(took for took, _ in pairs),
        reference=statistics.median(other for _, other in pairs),
        speedup=statistics.median(other / took for took, other in pairs),
    )


def roofline(case: Case, limits: Limits) -> float:
    """Seconds at least: the larger of moving its bytes and computing its FLOP."""
    rate = limits.packed if case.rows <= _FEW_ROWS else limits.prefill
    return max(case.bytes / limits.read, case.flop / rate)


def error(mine: torch.Tensor | None, other: torch.Tensor | None) -> float | None:
    """The largest difference over the reference's largest value; None where the op gives nothing to compare."""
    if mine is None or other is None:
        return None
    mine, other = mine.double(), other.double()
    return float((mine - other).abs().max() / other.abs().max().clamp_min(1e-30))


def _side(case: Case, rig: Rig) -> Side:
    return Side(call=case.make(rig), library_threads=rig.ops.library_threads)


def _row(case: Case, difference: float | None, limits: Limits, took: Timing) -> dict[str, Any]:
    least = roofline(case, limits)
    return {
        "op": case.op,
        "case": case.name,
        "us": round(took.seconds * 1e6, 2),
        "reference_us": round(took.reference * 1e6, 2),
        "speedup": round(took.speedup, 3),
        "roofline_us": round(least * 1e6, 2) or None,
        "share_of_roofline": round(least / took.seconds, 4) if least else None,
        "gflop_s": round(case.flop / took.seconds / 1e9, 2) or None,
        "gb_s": round(case.bytes / took.seconds / 1e9, 2) or None,
        "error": difference,
    }


@torch.inference_mode()
def measure(
    rig: Rig,
    reference: Rig,
    steps: tuple[Sequence[Step], Sequence[Step]],
    limits_of: Callable[[], Limits],
    *,
    only: Sequence[str],
    rounds: int,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """A row for each case of `steps` (decodes, prefills), of the ops in `only` or of all. Each side has `seconds` in each of the
    rounds; the limits are measured anew for each op.

    All results are compared before anything is timed: timed calls write KV, and one side makes more of them than the other.
    """
    cases = sorted((case for case in all_of(rig, *steps) if not only or case.op in only), key=lambda case: case.op)
    errors = [error(_side(case, rig).first(), _side(case, reference).first()) for case in cases]
    limits, op = None, ""
    for case, difference in zip(cases, errors, strict=True):
        if limits is None or case.op != op:
            limits, op = limits_of(), case.op
        took = timing(_side(case, rig), _side(case, reference), rounds, seconds)
        yield _row(case, difference, limits, took)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """For people."""
    head = ("op", "case", "us", "reference us", "speedup", "of the roofline", "GFLOP/s", "GB/s", "error")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        share = "-" if row["share_of_roofline"] is None else f"{row['share_of_roofline']:.0%}"
        difference = "-" if row["error"] is None else f"{row['error']:.1e}"
        rates = (f"{row[name]:.4g}" if row[name] else "-" for name in ("gflop_s", "gb_s"))
        times = (f"{row['us']:.4g}", f"{row['reference_us']:.4g}", f"{row['speedup']:.2f}")
        lines.append("| " + " | ".join((row["op"], row["case"], *times, share, *rates, difference)) + " |")
    return "\n".join(lines) + "\n"
