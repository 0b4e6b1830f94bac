"""`octavo bench sweep`: the time of one step as batch, context and chunk grow.

Steps are made by hand and given to the runner, so that nothing of the scheduler is in their time; KV lies behind every position that they
look at. All points are walked through several times, so that a machine that drifts does not draw a curve.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shared.hashing import BLOCK_SIZE
from shared.types import Sampling
from worker.assemble import Parts
from worker.plan import BlockCopy, Chunk, Executor, SampleRow, SlotStart, StepPlan, TableWrite

_SAMPLING = Sampling(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)
_COPIES = 256  # blocks of one plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A step in which each of `batch` sequences computes `chunk` positions from `context` on and samples one token."""

    axis: str
    batch: int
    context: int
    chunk: int

    @property
    def x(self) -> int:
        """What grows along its axis."""
        return {"batch": self.batch, "context": self.context, "chunk": self.chunk}[self.axis]

    @property
    def kept(self) -> int:
        """Blocks with the context of a sequence."""
        return -(-self.context // BLOCK_SIZE)

    @property
    def width(self) -> int:
        """Blocks of a sequence."""
        return -(-(self.context + self.chunk + 1) // BLOCK_SIZE)


class Bench:
    """Makes steps on an executor whose blocks are all free. One sequence, in the first blocks, is what others get copies of."""

    def __init__(self, executor: Executor, blocks: int, *, vocab_size: int, step_tokens: int):
        self._executor = executor
        self._blocks = blocks
        self._vocab_size = vocab_size
        self._step_tokens = step_tokens
        self._written = 0
        self._number = 0

    def fits(self, point: Point, source: int) -> bool:
        """Whether there are blocks for it, beside those of the `source` sequence."""
        return source + point.batch * point.width <= self._blocks

    def seconds(self, point: Point, repeats: int) -> list[float]:
        """Of `repeats` such steps, the same one again and again, after one that does not count."""
        self._write(point.kept)
        self._copy(point)
        return [self._step(point) for _ in range(repeats + 1)][1:]

    def _write(self, blocks: int) -> None:
        """KV of the source sequence, in the first blocks."""
        if blocks <= self._written:
            return
        end = blocks * BLOCK_SIZE
        self._run(**self._taken([(0, 0, blocks)], end))
        for start in range(self._written * BLOCK_SIZE, end, self._step_tokens):
            self._run(chunks=(Chunk(slot=0, start=start, length=min(self._step_tokens, end - start)),))
        self._written = blocks

    def _first(self, point: Point, slot: int) -> int:
        return self._written + slot * point.width

    def _copy(self, point: Point) -> None:
        """The source's KV behind each sequence's context."""
        copies = [
            BlockCopy(source=block, target=self._first(point, slot) + block)
            for slot in range(point.batch)
            for block in range(point.kept)
        ]
        for at in range(0, len(copies), _COPIES):
            self._run(copies=tuple(copies[at : at + _COPIES]))

    def _step(self, point: Point) -> float:
        end = point.context + point.chunk
        places = [(slot, self._first(point, slot), point.width) for slot in range(point.batch)]
        self._run(**self._taken(places, end))
        chunks = tuple(Chunk(slot=slot, start=point.context, length=point.chunk) for slot in range(point.batch))
        samples = tuple(SampleRow(chunk=slot, slot=slot, position=end) for slot in range(point.batch))
        return self._run(chunks=chunks, samples=samples)

    def _taken(self, places: Sequence[tuple[int, int, int]], length: int) -> dict[str, Any]:
        """Sequences of equal tokens take their slots anew, each with (slot, first block, blocks)."""
        tokens = tuple(7919 * position % self._vocab_size for position in range(length))
        return {
            "starts": tuple(
                SlotStart(slot=slot, tokens=tokens, prompt_len=length, sampling=_SAMPLING, choice_index=0)
                for slot, _, _ in places
            ),
            "tables": tuple(
                TableWrite(slot=slot, first=0, blocks=tuple(range(first, first + count)))
                for slot, first, count in places
            ),
        }

    def _run(self, **what: Any) -> float:
        self._number += 1
        began = time.perf_counter()
        self._executor.execute(StepPlan(step=self._number, **what)).result()
        return time.perf_counter() - began


def points(
    batches: Sequence[int], contexts: Sequence[int], chunks: Sequence[int], *, at: tuple[int, int]
) -> Iterator[Point]:
    """Decode steps of growing batch at context `at[0]`; of growing context for one sequence and for `at[1]`; prompts of growing chunk."""
    context, batch = at
    yield from (Point(axis="batch", batch=count, context=context, chunk=1) for count in batches)
    for count in dict.fromkeys((1, batch)):
        yield from (Point(axis="context", batch=count, context=behind, chunk=1) for behind in contexts)
    yield from (Point(axis="chunk", batch=1, context=0, chunk=length) for length in chunks)


def growth(xs: Sequence[float], ys: Sequence[float]) -> list[float | None]:
    """For each place but the first, the power with which y grew from the place before: log(y / y') / log(x / x'). 1 is linear."""
    steps: list[float | None] = [
        math.log(y / earlier_y) / math.log(x / earlier_x)
        for (earlier_x, earlier_y), (x, y) in pairwise(zip(xs, ys, strict=True))
    ]
    return [None, *steps]


def measure(
    bench: Bench, wanted: Sequence[Point], *, repeats: int, rounds: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row a point: the median over the rounds of each one's median step. What does not fit into the KV cache is told and left out."""
    source = max((point.kept for point in wanted), default=0)
    fitting = [point for point in wanted if bench.fits(point, source)]
    if len(fitting) < len(wanted):
        progress(f"{len(wanted) - len(fitting)} points do not fit into the KV cache")
    taken: dict[Point, list[float]] = {point: [] for point in fitting}
    for _ in range(rounds):
        for point in fitting:
            taken[point].append(statistics.median(bench.seconds(point, repeats)))
    rows = [_row(point, statistics.median(taken[point]), min(taken[point])) for point in fitting]
    return _with_growth(rows)


def _row(point: Point, seconds: float, least: float) -> dict[str, Any]:
    tokens = point.batch * point.chunk
    return {
        "axis": point.axis,
        "batch": point.batch,
        "context": point.context,
        "chunk": point.chunk,
        "x": point.x,
        "ms": round(seconds * 1000, 4),
        "least_ms": round(least * 1000, 4),
        "tokens_per_s": round(tokens / seconds, 2),
    }


def curves(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Rows by axis, and along the context by batch."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["axis"], row["batch"] if row["axis"] == "context" else 0), []).append(row)
    return found


def _with_growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for curve in curves(rows).values():
        powers = growth([row["x"] for row in curve], [row["ms"] for row in curve])
        made += [
            {**row, "growth": None if power is None else round(power, 3)}
            for row, power in zip(curve, powers, strict=True)
        ]
    return made


def bench_of(parts: Parts) -> Bench:
    """On a loaded worker's executor."""
    return Bench(
        parts.executor,
        parts.info.total_blocks,
        vocab_size=parts.info.vocab_size,
        step_tokens=min(parts.scheduler.step_tokens, parts.info.max_model_len - 1),
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for people."""
    head = ("axis", "batch", "context", "chunk", "ms a step", "tokens/s", "growth")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        power = "" if row["growth"] is None else f"{row['growth']:.2f}"
        cells = (
            row["axis"],
            row["batch"],
            row["context"],
            row["chunk"],
            f"{row['ms']:.4g}",
            f"{row['tokens_per_s']:.4g}",
        )
        lines.append("| " + " | ".join(map(str, (*cells, power))) + " |")
    return "\n".join(lines) + "\n"
