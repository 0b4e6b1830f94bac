"""From logits to a step's result: what is forbidden or penalised, which rows are greedy, which are drawn, which want log-probabilities,
which cannot be sampled.

The order, for every row: allowed_token_ids, bad_words, min_tokens, logit_bias, repetition_penalty, presence_penalty and frequency_penalty,
temperature, top_k, top_p, min_p. Log-probabilities are of the raw logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels.backend import Backend
from kernels.logits.changes import LogitKernels
from shared.types import TokenLogprobs
from worker.plan import RowError, SampleRow, SlotStart
from worker.sampling.behind import CountedPenalties, ForbiddenWords, MaskedTokens
from worker.sampling.logprobs import Rank, Ranked, ranking, told
from worker.sampling.penalties import Penalties
from worker.sampling.processors import AllowedTokens, BadWords, Change, LogitBias, MinTokens, Placed, Processor
from worker.sampling.sending import Array, Send, at_once, whole
from worker.sampling.state import SamplingState

NOT_FINITE = RowError(message="the model's logits are not finite")
NOTHING_LEFT = RowError(
    message="no token is left to sample: allowed_token_ids, bad_words and min_tokens forbid all of them",
    param="allowed_token_ids",
)


_KEEPING = (MaskedTokens, Penalties, CountedPenalties)  # with tables on the device
_Processors = tuple[Processor, Processor, Processor, Processor, Penalties | CountedPenalties]  # in their order


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
        self.rank = ranking(ops)
        self._processors = _processors(ops.logit_kernels, tokens, vocab_size, eos_token_ids)
        self._penalties = self._processors[-1]

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot."""
        self.state.start(start)
        for processor in self._processors:
            processor.start(start)

    def stage_starts(self, send: Send) -> Callable[[], None]:
        """What fills the device's tables with what sequences that have started since ask for. With the step that they start in, it can only
        be lost where they end, too; where this is not called, the next step that samples by the table brings it.
        """
        jobs = [one.stage_starts(send) for one in self._processors if isinstance(one, _KEEPING)]

        def bring() -> None:
            for job in jobs:
                job()

        return bring

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> Sampled:
        """logits float32 [rows, vocabulary], one row of them for each of `rows`. A row that cannot be sampled fails alone."""
        staged = self.stage(rows, at_once)
        return staged.read([tensor.numpy() for tensor in staged.run(logits)])

    def stage(self, rows: Sequence[SampleRow], send: Send) -> StagedSamples:
        """All that can be done before the logits are there."""
        changes = self.stage_changes(rows, send)
        choose = self._stage_tokens(rows, send)
        counted = _using(self._penalties, rows)
        count = self._penalties.counts.stage_sampled(counted, send) if counted else None
        wanted = {i: n for i, row in enumerate(rows) if (n := self.state.of(row.slot).sampling.logprobs) is not None}
        rank = _stage_ranks(self.rank, wanted, len(rows), send) if wanted else None

        def run(logits: torch.Tensor) -> list[torch.Tensor]:
            good = left = self._ops.finite(logits)
            usable = self._without(logits, good)
            if changes:
                usable = self.changed(usable, changes, copied=rank is not None)
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

    def changed(self, logits: torch.Tensor, changes: Sequence[Change], *, copied: bool = True) -> torch.Tensor:
        """The logits as the processors leave them, in a copy where somebody wants them as they were."""
        adjusted = logits.clone() if copied or self._ops.logit_kernels is None else logits
        for change in changes:
            change(adjusted)
        return adjusted

    def _without(self, logits: torch.Tensor, good: torch.Tensor) -> torch.Tensor:
        """Zeros in the rows that have failed, so that nothing downstream meets what it is not made for."""
        if self._ops.logit_kernels is not None:
            self._ops.logit_kernels.blank(logits, good)
            return logits
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


def _processors(kernels: LogitKernels | None, tokens: torch.Tensor, vocab_size: int, eos: Sequence[int]) -> _Processors:
    if kernels is None:
        return (
            AllowedTokens(),
            BadWords(tokens),
            MinTokens(eos, vocab_size),
            LogitBias(),
            Penalties(tokens, vocab_size),
        )
    slots, device = len(tokens), tokens.device
    return (
        MaskedTokens(kernels, slots, vocab_size, device),
        ForbiddenWords(kernels, tokens),
        MinTokens(eos, vocab_size, kernels),
        LogitBias(kernels),
        CountedPenalties(kernels, slots, vocab_size, device),
    )


def _stage_ranks(
    rank: Rank, wanted: dict[int, int], rows: int, send: Send
) -> Callable[[torch.Tensor, torch.Tensor], Ranked]:
    """Log-probabilities of those of the `rows` that want them."""
    most = max(wanted.values())
    if len(wanted) == rows:
        return lambda logits, tokens: rank(logits, tokens, most)
    at = send(whole(list(wanted)))
    return lambda logits, tokens: rank(logits.index_select(0, at()), tokens.index_select(0, at()), most)


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
