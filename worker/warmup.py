"""Before a worker serves: one full step, so that memory is touched and kernels are chosen, and a short sweep of steps whose times seed the
step-time model.

All of it runs through the executor itself and past the scheduler: its pool and its prefix cache never hear of it. What is written into
slots and blocks is finite, and the sequences that take them later overwrite what they read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.hashing import BLOCK_SIZE
from shared.types import Sampling
from worker.kvcache.cache import blocks_for
from worker.plan import BlockCopy, Chunk, Executor, SampleRow, SlotStart, StepPlan, TableWrite
from worker.scheduler.fit import Measurement
from worker.scheduler.steptime import shape_of

SECONDS = 1.0  # of a sweep's steps: one that is expected to end later is left out
_SAMPLING = Sampling(temperature=1.0, max_tokens=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a step may have, and the KV there is."""

    step_tokens: int
    slots: int
    blocks: int
    max_model_len: int

    @property
    def full(self) -> int:
        """Tokens of the longest prompt that one step can compute."""
        return max(1, min(self.step_tokens, self.max_model_len - 1, BLOCK_SIZE * self.blocks))


class Point(NamedTuple):
    """A step of `decodes` decoding sequences with `context` tokens each, and a chunk of `length` positions from `start` on."""

    decodes: int = 0
    context: int = 1
    start: int = 0
    length: int = 0

    @property
    def sequences(self) -> tuple[Chunk, ...]:
        """The chunks, one slot after the other."""
        decodes = [Chunk(slot, self.context - 1, 1) for slot in range(self.decodes)]
        return (*decodes, Chunk(self.decodes, self.start, self.length)) if self.length else tuple(decodes)

    @property
    def rows(self) -> int:
        """Positions that it computes."""
        return self.decodes + self.length

    def fits(self, limits: Limits) -> bool:
        """Whether a worker of these limits could ever plan it."""
        chunks = self.sequences
        return (
            len(chunks) <= limits.slots
            and self.rows <= limits.step_tokens
            and all(chunk.start + chunk.length < limits.max_model_len for chunk in chunks)
            and self.blocks <= limits.blocks
        )

    @property
    def blocks(self) -> int:
        """Blocks that its sequences take, none of them shared."""
        return sum(blocks_for(chunk.start + chunk.length) for chunk in self.sequences)


def points(limits: Limits) -> list[Point]:
    """What a sweep measures, first what takes little time and tells much: where steps are slow there is no time for the rest."""
    wanted = [
        Point(1, 64), Point(length=64), Point(8, 64), Point(8, 496), Point(length=128), Point(32, 64),
        Point(limits.slots, 60), Point(length=limits.full), Point(8, 64, 0, 64), Point(length=256),
        Point(start=384, length=128), Point(8, 64, 448, 32), Point(16, 240), Point(4, 64), Point(length=16),
    ]  # fmt: skip
    return [point for point in dict.fromkeys(wanted) if point.fits(limits)]


def _setup(point: Point) -> StepPlan:
    """Slots and tables of the point's sequences, and nothing to compute."""
    starts, tables, first = [], [], 0
    for slot, start, length, _ in point.sequences:
        tokens, count = start + length, blocks_for(start + length)
        starts.append(SlotStart(slot=slot, tokens=(0,) * tokens, prompt_len=tokens, sampling=_SAMPLING, choice_index=0))
        tables.append(TableWrite(slot=slot, first=0, blocks=tuple(range(first, first + count))))
        first += count
    return StepPlan(step=-1, starts=tuple(starts), tables=tuple(tables))


def _work(point: Point) -> StepPlan:
    """The point's step."""
    rows = [SampleRow(number, one.slot, one.start + one.length) for number, one in enumerate(point.sequences)]
    return StepPlan(step=-1, chunks=point.sequences, samples=tuple(rows))


def _fill(written: int, wanted: int) -> StepPlan:
    """Gives blocks that nobody has written the KV of some that are: memory that was never touched would be read too fast."""
    return StepPlan(step=-1, copies=tuple(BlockCopy(block % written, block) for block in range(written, wanted)))


def _decodes(taken: Mapping[Point, Sequence[Measurement]]) -> list[Measurement]:
    """The latest measurement of each point that has no chunk."""
    return [measured[-1] for point, measured in taken.items() if measured and not point.length]


def _guess(point: Point, first: Measurement, decodes: Sequence[Measurement]) -> float:
    """Seconds that a step may take which was never made: for each position of its chunk as much as of the first step, which was a full
    one; for each decode as much as of the largest of the measured `decodes` that had no more of them."""
    rows = point.length
    smaller = [each for each in decodes if each.shape.rows <= point.decodes]
    if smaller:
        most = max(smaller, key=lambda each: each.shape.rows)
        seconds = most.seconds * point.decodes / most.shape.rows
    else:
        rows, seconds = point.rows, 0.0
    return seconds + first.seconds * rows / first.shape.rows


class WarmUp:
    """Makes the steps, one after the other."""

    def __init__(self, executor: Executor, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = executor
        self._limits = limits
        self._clock = clock

    def full_step(self) -> Measurement:
        """A prompt as long as a step can take, in slot 0 and the first blocks."""
        return self._measure(Point(length=self._limits.full))

    def sweep(self, first: Measurement, seconds: float = SECONDS) -> list[Measurement]:
        """Each point once, then again, for as long as there is time. `first` is the full step's."""
        written = first.shape.rows // BLOCK_SIZE
        chosen = points(self._limits) if written else [Point(length=self._limits.full)]
        if written:
            self._run(_fill(written, max(point.blocks for point in chosen)))
        ends = self._clock() + seconds
        taken: dict[Point, list[Measurement]] = {point: [] for point in chosen}
        while self._round(taken, first, ends):
            pass
        found = [each for measurements in taken.values() for each in measurements]
        large = any(2 * each.shape.rows >= first.shape.rows for each in found)
        return found if large else [first, *found]

    def _round(self, taken: dict[Point, list[Measurement]], first: Measurement, ends: float) -> bool:
        """Measure each point for which there is time; whether there was any."""
        some = False
        for point, before in taken.items():
            expected = before[-1].seconds if before else _guess(point, first, _decodes(taken))
            if self._clock() + expected <= ends:
                before.append(self._measure(point))
                some = True
        return some

    def _measure(self, point: Point) -> Measurement:
        self._run(_setup(point))
        work = _work(point)
        began = self._clock()
        self._run(work)
        return Measurement(shape_of(work), self._clock() - began)

    def _run(self, plan: StepPlan) -> None:
        self._executor.execute(plan).result()
