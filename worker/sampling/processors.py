"""The logit processors: what a request's options forbid or favour. Each knows the slots that use it, and costs nothing for others."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from kernels.sample import adjust
from shared.limits import MAX_BAD_WORD
from worker.plan import SampleRow, SlotStart
from worker.sampling.ragged import row_of
from worker.sampling.sending import Send, whole

Change = Callable[[torch.Tensor], None]  # of logits float32 [rows, vocabulary], in place
_Ints = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """A row of the logits, and what is sampled from it."""

    row: int
    sample: SampleRow


class PairChanges(Protocol):
    """What changes single logits: kernels.sample.adjust, or kernels of a device."""

    def forbid(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """See kernels.sample.adjust."""

    def add_bias(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor) -> None:
        """See kernels.sample.adjust."""


class Processor(Protocol):
    """One option, over all slots."""

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot: keep what it asks for, and forget what was there."""

    @property
    def unused(self) -> bool:
        """Whether no slot asks for it."""

    def uses(self, sample: SampleRow) -> bool:
        """Whether this sample's logits are to be changed."""

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """What changes the logits of the rows `placed`, all of which use it."""


def _rows(placed: Sequence[Placed]) -> list[int]:
    return [at.row for at in placed]


class AllowedTokens:
    """allowed_token_ids: nothing else is sampled."""

    def __init__(self) -> None:
        self._tokens: dict[int, _Ints] = {}

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._tokens.pop(start.slot, None)
        if start.sampling.allowed_token_ids:
            self._tokens[start.slot] = whole(start.sampling.allowed_token_ids)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._tokens

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._tokens

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        rows, parts = _rows(placed), [self._tokens[at.sample.slot] for at in placed]
        only, of, tokens = send(whole(rows)), send(row_of(rows, parts)), send(np.concatenate(parts))
        return lambda logits: adjust.allow_only(logits, only(), of(), tokens())


class BadWords:
    """bad_words: the last token of a sequence is forbidden where the output ends with the others. `tokens` is the slots' token buffer."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._buffer = tokens
        self._words: dict[int, tuple[int, _Ints, _Ints]] = {}  # prompt's length, beginnings, last tokens

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._words.pop(start.slot, None)
        words = start.sampling.bad_words
        if words:
            beginnings = [(*[adjust.ANY] * (MAX_BAD_WORD - len(word)), *word[:-1]) for word in words]
            lasts = whole([word[-1] for word in words])
            self._words[start.slot] = (start.prompt_len, whole(beginnings), lasts)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._words

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._words

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        prompts, begin, last = zip(*(self._words[at.sample.slot] for at in placed), strict=True)
        which = row_of(range(len(placed)), last)
        slots, positions = whole([(at.sample.slot, at.sample.position) for at in placed]).T
        columns = positions[:, None] + np.arange(1 - MAX_BAD_WORD, 0)  # where an output's tail is
        heads, there = send(np.ascontiguousarray(slots[:, None])), send(columns >= whole(prompts)[:, None])
        at, rows, of = send(columns.clip(min=0)), send(whole(_rows(placed))[which]), send(which)
        lasts, beginnings = send(np.concatenate(last)), send(np.concatenate(begin))

        def change(logits: torch.Tensor) -> None:
            tails = self._buffer[heads(), at()].where(there(), adjust.NOTHING)
            adjust.forbid_endings(logits, rows(), lasts(), beginnings(), tails.index_select(0, of()))

        return change


class MinTokens:
    """min_tokens: what would end the sequence is forbidden before so many outputs. Kept off tokens that the head does not have."""

    def __init__(self, eos_token_ids: Sequence[int], vocab_size: int, changes: PairChanges = adjust) -> None:
        self._changes = changes
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self._ends: dict[int, tuple[int, _Ints]] = {}  # first position at which they may be sampled, tokens

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._ends.pop(start.slot, None)
        sampling = start.sampling
        eos = () if sampling.ignore_eos else self._eos
        ends = [token for token in {*eos, *sampling.stop_token_ids} if token < self._vocab_size]
        if sampling.min_tokens and ends:
            self._ends[start.slot] = (start.prompt_len + sampling.min_tokens, whole(sorted(ends)))

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._ends

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        found = self._ends.get(sample.slot)
        return found is not None and sample.position < found[0]

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        parts = [self._ends[at.sample.slot][1] for at in placed]
        rows, tokens = send(row_of(_rows(placed), parts)), send(np.concatenate(parts))
        return lambda logits: self._changes.forbid(logits, rows(), tokens())


class LogitBias:
    """logit_bias: added to the logits of the tokens it names."""

    def __init__(self, changes: PairChanges = adjust) -> None:
        self._changes = changes
        self._bias: dict[int, tuple[_Ints, npt.NDArray[np.float32]]] = {}  # tokens, values

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._bias.pop(start.slot, None)
        if start.sampling.logit_bias:
            tokens, values = zip(*start.sampling.logit_bias, strict=True)
            self._bias[start.slot] = (whole(tokens), np.array(values, dtype=np.float32))

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._bias

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._bias

    def stage(self, placed: Sequence[Placed], send: Send) -> Change:
        """See Processor."""
        parts, biases = zip(*(self._bias[at.sample.slot] for at in placed), strict=True)
        rows, tokens = send(row_of(_rows(placed), parts)), send(np.concatenate(parts))
        values = send(np.concatenate(biases))
        return lambda logits: self._changes.add_bias(logits, rows(), tokens(), values())
