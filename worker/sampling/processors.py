"""The logit processors: what a request's options forbid or favour. Each knows the slots that use it, and costs nothing for others."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from kernels.sample import adjust
from shared.limits import MAX_BAD_WORD
from worker.plan import SampleRow, SlotStart
from worker.sampling.ragged import row_of


class Placed(NamedTuple):
    """A row of the logits, and what is sampled from it."""

    row: int
    sample: SampleRow


class Processor(Protocol):
    """One option, over all slots."""

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot: keep what it asks for, and forget what was there."""

    @property
    def unused(self) -> bool:
        """Whether no slot asks for it."""

    def uses(self, sample: SampleRow) -> bool:
        """Whether this sample's logits are to be changed."""

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """Change the logits, float32 [rows, vocabulary], of the rows `placed`, all of which use it, in place."""


def _rows(placed: Sequence[Placed]) -> list[int]:
    return [at.row for at in placed]


class AllowedTokens:
    """allowed_token_ids: nothing else is sampled."""

    def __init__(self) -> None:
        self._tokens: dict[int, torch.Tensor] = {}

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._tokens.pop(start.slot, None)
        if start.sampling.allowed_token_ids:
            self._tokens[start.slot] = torch.tensor(start.sampling.allowed_token_ids, dtype=torch.int64)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._tokens

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._tokens

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """See Processor."""
        rows, tokens = _rows(placed), [self._tokens[at.sample.slot] for at in placed]
        only = torch.tensor(rows, dtype=torch.int64)
        adjust.allow_only(logits, only, row_of(rows, tokens), torch.cat(tokens))


class BadWords:
    """bad_words: the last token of a sequence is forbidden where the output ends with the others. `tokens` is the slots' token buffer."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._buffer = tokens
        self._back = torch.arange(1 - MAX_BAD_WORD, 0)  # where an output's tail is, counted from the position sampled
        self._words: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}  # prompt's length, beginnings, last tokens

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._words.pop(start.slot, None)
        words = start.sampling.bad_words
        if words:
            beginnings = [(*[adjust.ANY] * (MAX_BAD_WORD - len(word)), *word[:-1]) for word in words]
            lasts = torch.tensor([word[-1] for word in words], dtype=torch.int64)
            self._words[start.slot] = (start.prompt_len, torch.tensor(beginnings, dtype=torch.int64), lasts)

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._words

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._words

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """See Processor."""
        prompts, beginnings, lasts = zip(*(self._words[at.sample.slot] for at in placed), strict=True)
        tails = self._tails(placed, prompts)
        which = row_of(range(len(placed)), lasts)
        rows = torch.tensor(_rows(placed), dtype=torch.int64).index_select(0, which)
        adjust.forbid_endings(logits, rows, torch.cat(lasts), torch.cat(beginnings), tails.index_select(0, which))

    def _tails(self, placed: Sequence[Placed], prompts: Sequence[int]) -> torch.Tensor:
        """int64 [placed, MAX_BAD_WORD - 1]: the last outputs, NOTHING before the first."""
        slots, positions = torch.tensor([(at.sample.slot, at.sample.position) for at in placed], dtype=torch.int64).T
        columns = positions[:, None] + self._back
        tokens = self._buffer[slots[:, None], columns.clamp_min(0)]
        return tokens.where(columns >= torch.tensor(prompts)[:, None], adjust.NOTHING)


class MinTokens:
    """min_tokens: what would end the sequence is forbidden before so many outputs. Kept off tokens that the head does not have."""

    def __init__(self, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self._ends: dict[int, tuple[int, torch.Tensor]] = {}  # first position at which they may be sampled, tokens

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._ends.pop(start.slot, None)
        sampling = start.sampling
        eos = () if sampling.ignore_eos else self._eos
        ends = [token for token in {*eos, *sampling.stop_token_ids} if token < self._vocab_size]
        if sampling.min_tokens and ends:
            from_here = start.prompt_len + sampling.min_tokens
            self._ends[start.slot] = (from_here, torch.tensor(sorted(ends), dtype=torch.int64))

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._ends

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        found = self._ends.get(sample.slot)
        return found is not None and sample.position < found[0]

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """See Processor."""
        tokens = [self._ends[at.sample.slot][1] for at in placed]
        adjust.forbid(logits, row_of(_rows(placed), tokens), torch.cat(tokens))


class LogitBias:
    """logit_bias: added to the logits of the tokens it names."""

    def __init__(self) -> None:
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # tokens, values

    def start(self, start: SlotStart) -> None:
        """See Processor."""
        self._bias.pop(start.slot, None)
        if start.sampling.logit_bias:
            tokens, values = zip(*start.sampling.logit_bias, strict=True)
            self._bias[start.slot] = (torch.tensor(tokens, dtype=torch.int64), torch.tensor(values))

    @property
    def unused(self) -> bool:
        """See Processor."""
        return not self._bias

    def uses(self, sample: SampleRow) -> bool:
        """See Processor."""
        return sample.slot in self._bias

    def apply(self, logits: torch.Tensor, placed: Sequence[Placed]) -> None:
        """See Processor."""
        tokens, values = zip(*(self._bias[at.sample.slot] for at in placed), strict=True)
        adjust.add_bias(logits, row_of(_rows(placed), tokens), torch.cat(tokens), torch.cat(values))
