"""The logit processors of a device that computes behind the host: what a sequence asks for is sent once, when it starts, and lies in tables
there; a step sends who is changed by which row of them. Each change is one launch, linear in the vocabulary and in nothing else.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.logits.changes import LogitKernels, Seen, Words, bitmap, words
from kernels.sample.adjust import ANY
from worker.plan import SampleRow, SlotStart
from worker.sampling.penalties import Counts, penalties_of
from worker.sampling.processors import Change, Placed
from worker.sampling.rows import Rows, grown
from worker.sampling.sending import Array, Send, Sent, whole


class Bitmaps:
    """`table` int32 [rows, words], a bit a token. `set` notes a row; it is there when what `stage` gave has run."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self.table = torch.zeros(0, words(vocab_size), dtype=torch.int32, device=device)
        self._fresh: dict[int, Array] = {}

    def set(self, row: int, tokens: Sequence[int]) -> None:
        """From the next staged step on the row is of these tokens."""
        self._fresh[row] = bitmap(whole(tokens), self._vocab_size)

    def stage(self, size: int, send: Send) -> "Refresh":
        """What brings noted rows into the table, made large enough for `size`."""
        fresh, self._fresh = self._fresh, {}
        if not fresh:
            return Refresh(self, size, None)
        return Refresh(self, size, (send(whole(list(fresh))), send(np.stack(list(fresh.values())))))


class Refresh:
    """Rows on their way to a table of bitmaps."""

    def __init__(self, bitmaps: Bitmaps, size: int, fresh: tuple[Sent, Sent] | None) -> None:
        self._bitmaps, self._size, self._fresh = bitmaps, size, fresh

    def __call__(self) -> None:
        """Bring them there."""
        self._bitmaps.table = grown(self._bitmaps.table, self._size)
        if self._fresh is not None:
            rows, bits = self._fresh
            self._bitmaps.table.index_copy_(0, rows(), bits())


class MaskedTokens:
    """allowed_token_ids: a Processor."""

    def __init__(self, kernels: LogitKernels, slots: int, vocab_size: int, device: torch.device) -> None:
        self._kernels = kernels
        self._rows = Rows(slots)
        self._bitmaps = Bitmaps(vocab_size, device)

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._rows.release(start.slot)
        if start.sampling.allowed_token_ids:
            self._bitmaps.set(self._rows.take(start.slot), start.sampling.allowed_token_ids)

    def stage_starts(self, send: Send) -> Callable[[], None]:
        """See Sampler."""
        return self._bitmaps.stage(self._rows.size, send)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not len(self._rows)

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._rows

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        refresh = self._bitmaps.stage(self._rows.size, send)
        rows = send(whole([at.row for at in placed]))
        entries = send(whole([self._rows.of(at.sample.slot) for at in placed]))

        def change(logits: torch.Tensor) -> None:
            refresh()
            self._kernels.mask(logits, rows(), self._bitmaps.table, entries())

        return change


class ForbiddenWords:
    """bad_words: a Processor. `tokens` is the slots' token buffer."""

    def __init__(self, kernels: LogitKernels, tokens: torch.Tensor) -> None:
        self._kernels = kernels
        self._buffer = tokens
        self._words: dict[int, tuple[int, tuple[tuple[int, ...], ...]]] = {}  # prompt's length, words

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._words.pop(start.slot, None)
        if start.sampling.bad_words:
            self._words[start.slot] = (start.prompt_len, start.sampling.bad_words)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._words

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._words

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor. Beginnings are as long as the longest of them."""
        prompts, parts = zip(*(self._words[at.sample.slot] for at in placed), strict=True)
        found = [word for part in parts for word in part]
        length = max(len(word) for word in found) - 1
        which = np.repeat(np.arange(len(placed)), [len(part) for part in parts])
        samples = whole([(at.row, at.sample.slot, at.sample.position) for at in placed])[which]
        rows, slots, ends = (send(column) for column in samples.T)
        begun = [(*[ANY] * (length + 1 - len(word)), *word[:-1]) for word in found]
        beginnings = send(np.array(begun, dtype=np.int32).reshape(len(found), length))
        tokens, starts = send(whole([word[-1] for word in found])), send(whole(prompts)[which])

        def change(logits: torch.Tensor) -> None:
            told = Words(
                rows=rows(), tokens=tokens(), beginnings=beginnings(), slots=slots(), prompts=starts(), ends=ends()
            )
            self._kernels.forbid_endings(logits, told, self._buffer)

        return change


class CountedPenalties:
    """Repetition, presence and frequency penalties: a Processor. What was seen is counted, or has its bit where it is of the prompt."""

    def __init__(self, kernels: LogitKernels, slots: int, vocab_size: int, device: torch.device) -> None:
        self._kernels = kernels
        self.counts = Counts(slots, vocab_size, device)
        self._prompts = Bitmaps(vocab_size, device)
        self._penalties = np.ones((slots, 3), dtype=np.float32)  # by row of the tables

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        row = self.counts.start(start)
        if row is not None:
            self._penalties[row] = penalties_of(start.sampling)
            self._prompts.set(row, start.tokens[: start.prompt_len])

    def stage_starts(self, send: Send) -> Callable[[], None]:
        """See Sampler."""
        restart, refresh = self.counts.stage_fresh(send), self._prompts.stage(self.counts.rows.size, send)

        def bring() -> None:
            restart()
            refresh()

        return bring

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not len(self.counts.rows)

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self.counts.rows

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        bring = self.stage_starts(send)
        rows, entries = send(whole([at.row for at in placed])), send(self.counts.of(placed))
        penalties = send(self._penalties[: self.counts.rows.size])

        def change(logits: torch.Tensor) -> None:
            bring()
            seen = Seen(counts=self.counts.table, prompts=self._prompts.table, penalties=penalties())
            self._kernels.penalise(logits, rows(), entries(), seen)

        return change
