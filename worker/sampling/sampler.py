"""From logits to a step's result: what is forbidden or penalised, which rows are greedy, which are drawn, which want log-probabilities,
which cannot be sampled.

The order, for every row: allowed_token_ids, bad_words, min_tokens, logit_bias, repetition_penalty, presence_penalty and frequency_penalty,
temperature, top_k, top_p, min_p. Log-probabilities are of the raw logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels.backend import Backend
from shared.types import TokenLogprobs
from worker.plan import RowError, SampleRow, SlotStart
from worker.sampling.logprobs import Ranked, ranked, told
from worker.sampling.penalties import Penalties
from worker.sampling.processors import AllowedTokens, BadWords, Change, LogitBias, MinTokens, Placed, Processor
from worker.sampling.sending import Array, Send, at_once, whole
from worker.sampling.state import SamplingState

NOT_FINITE = RowError(message="the model's logits are not finite")
NOTHING_LEFT = RowError(
    message="no token is left to sample: allowed_token_ids, bad_words and min_tokens forbid all of them",
    param="allowed_token_ids",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sampled:
    """A step's samples on the host, as in StepResult; `tokens` int64 [rows]."""

    tokens: torch.Tensor
    logprobs: list[TokenLogprobs | None]
    errors: list[RowError | None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StagedSamples:
    """A step's sampling. `run(logits float32 [rows, vocabulary])` computes: first the tokens int64 [rows], then what `read` takes beside
    them, all in the same order.
    """

    run: Callable[[torch.Tensor], list[torch.Tensor]]
    read: Callable[[Sequence[Array]], Sampled]


class Sampler:
    """Draws one token a row. `tokens` is the slots' token buffer, which holds all that comes before what is sampled.

    `looks`: values may be looked at while a step runs, which makes a device that runs behind the host wait.
    """

    def __init__(
        self,
        ops: Backend,
        *,
        state: SamplingState,
        tokens: torch.Tensor,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        looks: bool = True,
    ):
        self._ops = ops
        self._looks = looks
        self.state = state
        self._penalties = Penalties(tokens, vocab_size)
        self._processors: tuple[Processor, ...] = (
            AllowedTokens(),
            BadWords(tokens),
            MinTokens(eos_token_ids, vocab_size),
            LogitBias(),
            self._penalties,
        )

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot."""
        self.state.start(start)
        for processor in self._processors:
            processor.start(start)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> Sampled:
        """logits float32 [rows, vocabulary], one row of them for each of `rows`. A row that cannot be sampled fails alone."""
        staged = self.stage(rows, at_once)
        return staged.read([tensor.numpy() for tensor in staged.run(logits)])

    def stage(self, rows: Sequence[SampleRow], send: Send) -> StagedSamples:
        """All that can be done before the logits are there."""
        changes = self.stage_changes(rows, send)
        choose = self._stage_tokens(rows, send)
        counted = _using(self._penalties, rows)
        count = self._penalties.stage_sampled(counted, send) if counted else None
        wanted = {i: n for i, row in enumerate(rows) if (n := self.state.of(row.slot).sampling.logprobs) is not None}
        rank = _stage_ranks(wanted, send) if wanted else None

        def run(logits: torch.Tensor) -> list[torch.Tensor]:
            good = left = self._ops.finite(logits)
            usable = self._without(logits, good)
            if changes:
                usable = self.changed(usable, changes)
                left = usable.amax(-1) > -torch.inf
                usable = self._without(usable, left)
            tokens = choose(usable)
            if count is not None:
                count(tokens)
            return [tokens, good, left, *(rank(logits, tokens) if rank else ())]

        return StagedSamples(run=run, read=lambda arrays: _read(arrays, wanted))

    def stage_changes(self, rows: Sequence[SampleRow], send: Send) -> list[Change]:
        """What the processors have to do, in their order."""
        jobs = [(processor, placed) for processor in self._processors if (placed := _using(processor, rows))]
        return [processor.stage(placed, send) for processor, placed in jobs]

    @staticmethod
    def changed(logits: torch.Tensor, changes: Sequence[Change]) -> torch.Tensor:
        """A copy of the logits as the processors leave them."""
        adjusted = logits.clone()
        for change in changes:
            change(adjusted)
        return adjusted

    def _without(self, logits: torch.Tensor, good: torch.Tensor) -> torch.Tensor:
        """Zeros in the rows that have failed, so that nothing downstream meets what it is not made for."""
        if self._looks and bool(good.all()):
            return logits
        return logits.masked_fill(~good[:, None], 0.0)

    def _stage_tokens(self, rows: Sequence[SampleRow], send: Send) -> Callable[[torch.Tensor], torch.Tensor]:
        drawn = [i for i, row in enumerate(rows) if self.state.of(row.slot).sampling.temperature > 0]
        if not drawn:
            return self._ops.greedy
        of = self.state.draw([rows[i].slot for i in drawn], [rows[i].position for i in drawn], send)
        if len(drawn) == len(rows):
            return lambda logits: self._ops.sample(logits, of())
        at = send(whole(drawn))

        def mixed(logits: torch.Tensor) -> torch.Tensor:
            tokens = self._ops.greedy(logits)
            tokens[at()] = self._ops.sample(logits.index_select(0, at()), of())
            return tokens

        return mixed


def _using(processor: Processor, rows: Sequence[SampleRow]) -> list[Placed]:
    if processor.unused:
        return []
    return [Placed(i, row) for i, row in enumerate(rows) if processor.uses(row)]


def _stage_ranks(wanted: dict[int, int], send: Send) -> Callable[[torch.Tensor, torch.Tensor], Ranked]:
    """Log-probabilities of the rows that want them."""
    at, most = send(whole(list(wanted))), max(wanted.values())
    return lambda logits, tokens: ranked(logits.index_select(0, at()), tokens.index_select(0, at()), most)


def _read(arrays: Sequence[Array], wanted: dict[int, int]) -> Sampled:
    tokens, good, left, *ranks = arrays
    errors = [_error(*pair) for pair in zip(good.tolist(), left.tolist(), strict=True)]
    logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
    if wanted:
        for i, value in zip(wanted, told(ranks, list(wanted.values())), strict=True):
            logprobs[i] = value if errors[i] is None else None
    return Sampled(tokens=torch.from_numpy(tokens), logprobs=logprobs, errors=errors)


def _error(good: bool, left: bool) -> RowError | None:
    if not good:
        return NOT_FINITE
    return None if left else NOTHING_LEFT
