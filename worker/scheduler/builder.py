"""Gathers one step: the plan for the runner, and what the scheduler must remember of it until it retires."""

import math
from dataclasses import dataclass

from shared.hashing import BLOCK_SIZE
from worker.plan import BlockCopy, Chunk, PromptRows, SampleRow, SlotStart, StepPlan, TableWrite
from worker.scheduler.guard import Guard, Want
from worker.scheduler.residents import Residents
from worker.scheduler.steptime import StepShape
from worker.sequence import SequenceState


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """A step in flight. `works` are (sequence, its incarnation then, positions computed when the step has retired); `prompts` are
    (sequence, the first of the prompt's positions whose log-probability comes).
    """

    step: int
    planned_at: float
    works: list[tuple[SequenceState, int, int]]
    rows: list[SequenceState]  # whom each sample is for
    prompts: list[tuple[SequenceState, int]]
    shape: StepShape
    predicted_s: float


class StepBuilder:
    """One step in the making. `budget` is how many tokens it may still compute, `shape` what it computes so far.

    From `guard_from_here` on, `room_for` keeps it under the target time that what was there by then has.
    """

    def __init__(self, *, step: int, budget: int, residents: Residents, guard: Guard, floor: int) -> None:
        self.step = step
        self.budget = budget
        self.shape = StepShape()
        self._residents = residents
        self._guard = guard
        self._target = math.inf
        self._floor = floor  # tokens that prefills may have whatever the target
        self._held = StepShape()
        self._starts: list[SlotStart] = []
        self._tables: list[TableWrite] = []
        self._copies: list[BlockCopy] = []
        self._chunks: list[Chunk] = []
        self._samples: list[SampleRow] = []
        self._works: list[tuple[SequenceState, int, int]] = []
        self._rows: list[SequenceState] = []
        self._prompts: list[PromptRows] = []
        self._scored: list[tuple[SequenceState, int]] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._chunks

    def has_room(self, seq: SequenceState) -> bool:
        """Make the block of the next position the sequence's own, by a new block or a copy; False where none is available."""
        cache, table = self._residents.cache, seq.table
        assert table is not None
        entry = seq.scheduled // BLOCK_SIZE
        sharers = cache.sharers(table, entry)
        if sharers == 1:
            return True
        if not cache.available:
            return False
        if sharers:
            self._copies.append(cache.diverge(table, entry, self.step))
        else:
            cache.grow(table)
        return True

    def guard_from_here(self, *, several: bool) -> None:
        """All decodes are in. `several`: tenants are here."""
        self._target = self._guard.target(self.shape, several=several)
        self._floor += self.shape.rows

    def has_place(self, start: int) -> bool:
        """Whether there is room for one position, of someone who begins at `start`."""
        return self._room(Want(start=start, length=1)) > 0

    def room_for(self, seq: SequenceState) -> int:
        """How many of the sequence's pending positions may be added."""
        scored = seq.request.rows_missing > 0
        return self._room(Want(start=seq.scheduled, length=seq.pending, samples=1 + len(seq.children), scored=scored))

    def _room(self, want: Want) -> int:
        shape, most = self.shape.joined(self._held), min(want.length, self.budget)
        fits = self._guard.longest(shape, want, most=most, target=self._target)
        return max(fits, min(most, self._floor - shape.rows))

    def hold(self, start: int, length: int) -> StepShape:
        """Keep this much of the budget and of the time from others, until it is released."""
        held = StepShape().plus(start, length)
        self._held = self._held.joined(held)
        self.budget -= length
        return held

    def release(self, held: StepShape) -> None:
        """Give back what was held."""
        self._held = StepShape(*(all_held - one for all_held, one in zip(self._held, held, strict=True)))
        self.budget += held.rows

    def add(self, seq: SequenceState, length: int) -> None:
        """Compute the next `length` positions, and sample where that is all there is to compute."""
        self._tell(seq)
        chunk = len(self._chunks)
        self._chunks.append(Chunk(seq.slot, seq.scheduled, length, seq.adapter_slot))
        self.budget -= length
        self.shape = self.shape.plus(seq.scheduled, length)
        if seq.request.rows_missing:
            self._score(chunk, seq, length)
        seq.scheduled += length
        seq.last_step = self.step
        self._works.append((seq, seq.incarnation, seq.scheduled))
        if seq.scheduled == len(seq.tokens) + seq.unknown:
            self._sample(chunk, seq)
            if seq.children:
                self._fork(chunk, seq)

    def _tell(self, seq: SequenceState) -> None:
        assert seq.table is not None
        if not seq.started:
            self._starts.append(seq.slot_start())
            seq.started = True
        self._tables.extend(seq.table.writes(seq.slot))

    def _sample(self, chunk: int, seq: SequenceState) -> None:
        self._samples.append(SampleRow(chunk, seq.slot, seq.scheduled))
        self._rows.append(seq)
        self.shape = self.shape._replace(samples=self.shape.samples + 1)
        seq.unknown += 1

    def _score(self, chunk: int, seq: SequenceState, length: int) -> None:
        """The prompt's tokens that the chunk predicts, as far as they are not told yet."""
        first = max(seq.scheduled, seq.request.rows_told) + 1
        last = min(seq.scheduled + length, seq.prompt_len - 1)
        if first <= last:
            self._prompts.append(PromptRows(chunk, first, last - first + 1))
            self._scored.append((seq, first))
            self.shape = self.shape._replace(samples=self.shape.samples + last - first + 1)

    def _fork(self, chunk: int, leader: SequenceState) -> None:
        """Each of the leader's children draws its first token from the leader's prefill."""
        for child in self._residents.fork(leader, self.step):
            self._tell(child)
            self._works.append((child, child.incarnation, child.scheduled))
            self._sample(chunk, child)

    def plan(self) -> StepPlan:
        """What the runner gets."""
        return StepPlan(
            step=self.step,
            starts=tuple(self._starts),
            tables=tuple(self._tables),
            copies=tuple(self._copies),
            chunks=tuple(self._chunks),
            samples=tuple(self._samples),
            prompts=tuple(self._prompts),
        )

    def flight(self, now: float, predicted_s: float) -> Flight:
        """What is remembered."""
        return Flight(
            step=self.step,
            planned_at=now,
            works=self._works,
            rows=self._rows,
            prompts=self._scored,
            shape=self.shape,
            predicted_s=predicted_s,
        )
