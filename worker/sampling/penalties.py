"""Repetition, presence and frequency penalties: how often each token stands in the output of each sequence that asks for them, kept
from step to step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kernels.sample import adjust
from shared.types import Sampling
from worker.plan import SampleRow, SlotStart
from worker.sampling.processors import Change, Placed
from worker.sampling.rows import Rows, grown
from worker.sampling.sending import Send, Sent, whole


def penalties_of(sampling: Sampling) -> tuple[float, float, float] | None:
    """Repetition, presence, frequency; None where all are off."""
    values = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return None if values == (1.0, 0.0, 0.0) else values


class _Fresh(NamedTuple):
    """A row of the table that a sequence has taken since the last staged step, and the outputs that it brings."""

    row: int
    outputs: Sequence[int]


class Counts:
    """`table` int32 [rows, vocabulary]: a sequence's outputs, a row for each slot that asks for penalties; the device's alone.

    A sequence that starts brings all its tokens, so that one that was preempted or comes from another worker counts as if it never stopped.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self.rows = Rows(slots)
        self._fresh: list[_Fresh] = []

    def start(self, start: SlotStart) -> int | None:
        """A sequence takes the slot: its row, None where it asks for no penalty."""
        self.rows.release(start.slot)
        if penalties_of(start.sampling) is None:
            return None
        row = self.rows.take(start.slot)
        self._fresh.append(_Fresh(row, start.tokens[start.prompt_len :]))
        return row

    def of(self, placed: Sequence[Placed]) -> npt.NDArray[np.int64]:
        """The rows of those placed, which all ask for penalties."""
        return whole([self.rows.of(at.sample.slot) for at in placed])

    def stage_fresh(self, send: Send) -> Callable[[], None]:
        """Rows that were taken since, and the table made large enough for them."""
        fresh, self._fresh, size = self._fresh, [], self.rows.size
        jobs = [(row, send(whole(outputs)) if len(outputs) else None) for row, outputs in fresh]

        def restart() -> None:
            self.table = grown(self.table, size)
            for row, outputs in jobs:
                _recount(self.table[row], outputs)

        return restart

    def stage_sampled(self, placed: Sequence[Placed], send: Send) -> Callable[[torch.Tensor], None]:
        """What counts the tokens of `placed` when `tokens` int64 [rows] are sampled. After `stage_fresh`."""
        rows, counts = send(whole([at.row for at in placed])), send(self.of(placed))

        def count(tokens: torch.Tensor) -> None:
            self.table[counts(), tokens.index_select(0, rows())] += 1  # a slot is sampled once a step

        return count


class Penalties:
    """A Processor. `tokens` is the slots' token buffer: what stands there is what a repetition is of."""

    def __init__(self, tokens: torch.Tensor, vocab_size: int) -> None:
        self._buffer = tokens
        self.counts = Counts(len(tokens), vocab_size, tokens.device)
        self._penalties = np.ones((len(tokens), 3), dtype=np.float32)

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        if self.counts.start(start) is not None:
            self._penalties[start.slot] = penalties_of(start.sampling)

    def stage_starts(self, send: Send) -> Callable[[], None]:
        """See Sampler."""
        return self.counts.stage_fresh(send)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not len(self.counts.rows)

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self.counts.rows

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        restart = self.counts.stage_fresh(send)
        slots, positions = _columns(placed)
        longest = int(positions.max())
        heads, ends = send(slots), send(np.ascontiguousarray(positions[:, None]))
        rows, counts = send(whole([at.row for at in placed])), send(self.counts.of(placed)[:, None])
        penalties = send(self._penalties[slots])

        def change(logits: torch.Tensor) -> None:
            restart()
            context = self._buffer[heads(), :longest]
            # What stands behind a row's own end is of another sequence; its first token, once more, changes nothing.
            inside = torch.arange(longest, device=context.device) < ends()
            context = torch.where(inside, context, context[:, :1])
            adjust.penalise(logits, rows(), context, self.counts.table[counts(), context], penalties())

        return change


def _recount(row: torch.Tensor, outputs: Sent | None) -> None:
    row.zero_()
    if outputs is not None:
        row.index_add_(0, outputs(), torch.ones_like(outputs(), dtype=torch.int32))


def _columns(placed: Sequence[Placed]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Slots and positions, int64 [placed] each."""
    return np.ascontiguousarray(whole([(at.sample.slot, at.sample.position) for at in placed]).T)
