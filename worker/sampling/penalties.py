"""Repetition, presence and frequency penalties: how often each token stands in the output of each sequence that asks for them, kept
from step to step.
"""

from collections.abc import Sequence

import torch

from kernels.sample import adjust
from shared.types import Sampling
from worker.plan import SampleRow, SlotStart
from worker.sampling.processors import Placed


def _of(sampling: Sampling) -> tuple[float, float, float] | None:
    """Repetition, presence, frequency; None where all are off."""
    values = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return None if values == (1.0, 0.0, 0.0) else values


class Penalties:
    """A Processor. `tokens` is the slots' token buffer; a count table's row, int32 [vocabulary], is taken by a slot that needs one.

    A sequence that starts brings all its tokens, so that one that was preempted or comes from another worker counts as if it never stopped.
    """

    def __init__(self, tokens: torch.Tensor, vocab_size: int) -> None:
        self._buffer = tokens
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32)  # grows to what was ever needed at once
        self._free: list[int] = []
        self._row: dict[int, int] = {}  # slot -> row of the table
        self._penalties = torch.ones(len(tokens), 3)

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        if start.slot in self._row:
            self._free.append(self._row.pop(start.slot))
        penalties = _of(start.sampling)
        if penalties is not None:
            self._penalties[start.slot] = torch.tensor(penalties)
            self._row[start.slot] = self._take()
            self._count(self._counts[self._row[start.slot]], start)

    def _take(self) -> int:
        if not self._free:
            size = len(self._counts)
            more = min(max(size, 1), len(self._buffer) - size)
            self._counts = torch.cat((self._counts, self._counts.new_zeros(more, self._counts.shape[1])))
            self._free = list(range(size, size + more))
        return self._free.pop()

    @staticmethod
    def _count(row: torch.Tensor, start: SlotStart) -> None:
        outputs = torch.tensor(list(start.tokens[start.prompt_len :]), dtype=torch.int64)
        row.zero_()
        row.index_add_(0, outputs, torch.ones(len(outputs), dtype=torch.int32))

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._row

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._row

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """See Processor."""
        rows, slots, positions = _columns(placed)
        counts = torch.tensor([self._row[at.sample.slot] for at in placed], dtype=torch.int64)
        longest = max(at.sample.position for at in placed)
        context = self._buffer[slots, :longest]
        # What stands behind a row's own end is of another sequence; its first token, once more, changes nothing.
        context = torch.where(torch.arange(longest) < positions[:, None], context, context[:, :1])
        adjust.penalise(logits, rows, context, self._counts[counts[:, None], context], self._penalties[slots])

    def sampled(self, tokens: torch.Tensor, placed: Sequence[Placed]) -> None:
        """`tokens` int64 [rows] were sampled: count those of `placed`."""
        rows, _, _ = _columns(placed)
        counts = torch.tensor([self._row[at.sample.slot] for at in placed], dtype=torch.int64)
        self._counts[counts, tokens.index_select(0, rows)] += 1  # a slot is sampled once a step


def _columns(placed: Sequence[Placed]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, slots and positions, int64 [placed] each."""
    rows, slots, positions = torch.tensor(
        [(at.row, at.sample.slot, at.sample.position) for at in placed], dtype=torch.int64
    ).T.contiguous()
    return rows, slots, positions
