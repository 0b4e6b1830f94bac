"""Repetition, presence and frequency penalties: how often each token stands in the output of each sequence that asks for them, kept
from step to step.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from kernels.sample import adjust
from shared.types import Sampling
from worker.plan import SampleRow, SlotStart
from worker.sampling.processors import Change, Placed
from worker.sampling.sending import Send, Sent, whole


def _of(sampling: Sampling) -> tuple[float, float, float] | None:
    """Repetition, presence, frequency; None where all are off."""
    values = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return None if values == (1.0, 0.0, 0.0) else values


class _Fresh(NamedTuple):
    """A row of the table that a sequence has taken since the last staged step, and the outputs that it brings."""

    row: int
    outputs: Sequence[int]


class Penalties:
    """A Processor. `tokens` is the slots' token buffer; a count table's row, int32 [vocabulary], is taken by a slot that needs one.

    A sequence that starts brings all its tokens, so that one that was preempted or comes from another worker counts as if it never stopped.
    """

    def __init__(self, tokens: torch.Tensor, vocab_size: int) -> None:
        self._buffer = tokens
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=tokens.device)  # the device's alone
        self._size = 0  # rows that were ever needed at once
        self._free: list[int] = []
        self._row: dict[int, int] = {}  # slot -> row of the table
        self._fresh: list[_Fresh] = []
        self._penalties = np.ones((len(tokens), 3), dtype=np.float32)

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        if start.slot in self._row:
            self._free.append(self._row.pop(start.slot))
        penalties = _of(start.sampling)
        if penalties is not None:
            self._penalties[start.slot] = penalties
            row = self._row[start.slot] = self._take()
            self._fresh.append(_Fresh(row, start.tokens[start.prompt_len :]))

    def _take(self) -> int:
        if not self._free:
            more = min(max(self._size, 1), len(self._buffer) - self._size)
            self._free = list(range(self._size, self._size + more))
            self._size += more
        return self._free.pop()

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._row

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._row

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        restart = self._stage_fresh(send)
        slots, positions = _columns(placed)
        longest = int(positions.max())
        heads, ends = send(slots), send(np.ascontiguousarray(positions[:, None]))
        rows, counts = send(whole([at.row for at in placed])), send(self._rows(placed)[:, None])
        penalties = send(self._penalties[slots])

        def change(logits: torch.Tensor) -> None:
            restart()
            context = self._buffer[heads(), :longest]
            # What stands behind a row's own end is of another sequence; its first token, once more, changes nothing.
            inside = torch.arange(longest, device=context.device) < ends()
            context = torch.where(inside, context, context[:, :1])
            adjust.penalise(logits, rows(), context, self._counts[counts(), context], penalties())

        return change

    def stage_sampled(self, placed: Sequence[Placed], send: Send) -> Callable[[torch.Tensor], None]:
        """What counts the tokens of `placed` when `tokens` int64 [rows] are sampled. After `stage` for the same rows."""
        rows, counts = send(whole([at.row for at in placed])), send(self._rows(placed))

        def count(tokens: torch.Tensor) -> None:
            self._counts[counts(), tokens.index_select(0, rows())] += 1  # a slot is sampled once a step

        return count

    def _rows(self, placed: Sequence[Placed]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return whole([self._row[at.sample.slot] for at in placed])

    def _stage_fresh(self, send: Send) -> Callable[[], None]:
        """Rows that were taken since, and the table made large enough for them."""
        fresh, self._fresh, size = self._fresh, [], self._size
        jobs = [(row, send(whole(outputs)) if len(outputs) else None) for row, outputs in fresh]

        def restart() -> None:
            if len(self._counts) < size:
                more = self._counts.new_zeros(size - len(self._counts), self._counts.shape[1])
                self._counts = torch.cat((self._counts, more))
            for row, outputs in jobs:
                _recount(self._counts[row], outputs)

        return restart


def _recount(row: torch.Tensor, outputs: Sent | None) -> None:
    row.zero_()
    if outputs is not None:
        row.index_add_(0, outputs(), torch.ones_like(outputs(), dtype=torch.int32))


def _columns(placed: Sequence[Placed]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Slots and positions, int64 [placed] each."""
    return np.ascontiguousarray(whole([(at.sample.slot, at.sample.position) for at in placed]).T)
