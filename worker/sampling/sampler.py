"""From logits to a step's result: what is forbidden or penalised, which rows are greedy, which are drawn, which want log-probabilities,
which cannot be sampled.

The order, for every row: allowed_token_ids, bad_words, min_tokens, logit_bias, repetition_penalty, presence_penalty and frequency_penalty,
temperature, top_k, top_p, min_p. Log-probabilities are of the raw logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.backend import Backend
from shared.types import TokenLogprobs
from worker.plan import RowError, SampleRow, SlotStart
from worker.sampling.logprobs import logprobs
from worker.sampling.penalties import Penalties
from worker.sampling.processors import AllowedTokens, BadWords, LogitBias, MinTokens, Placed, Processor
from worker.sampling.state import SamplingState

NOT_FINITE = RowError(message="the model's logits are not finite")
NOTHING_LEFT = RowError(
    message="no token is left to sample: allowed_token_ids, bad_words and min_tokens forbid all of them",
    param="allowed_token_ids",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sampled:
    """`tokens` int64 [rows] on the device; the rest as in StepResult."""

    tokens: torch.Tensor
    logprobs: list[TokenLogprobs | None]
    errors: list[RowError | None]


class Sampler:
    """Draws one token a row. `tokens` is the slots' token buffer, which holds all that comes before what is sampled."""

    def __init__(
        self, ops: Backend, *, state: SamplingState, tokens: torch.Tensor, vocab_size: int, eos_token_ids: Sequence[int]
    ):
        self._ops = ops
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
        errors = finite_errors(self._ops, logits)
        adjusted = self._adjusted(_without_failed(logits, errors), rows, errors)
        tokens = self._tokens(adjusted, rows)
        if counted := _using(self._penalties, rows):
            self._penalties.sampled(tokens, counted)
        return Sampled(tokens=tokens, logprobs=self._logprobs(logits, tokens, rows, errors), errors=errors)

    def _adjusted(self, logits: torch.Tensor, rows: Sequence[SampleRow], errors: list[RowError | None]) -> torch.Tensor:
        """As the processors leave the logits: a copy where any has to do. Rows with nothing left are noted in `errors`."""
        jobs = [(processor, placed) for processor in self._processors if (placed := _using(processor, rows))]
        if not jobs:
            return logits
        adjusted = logits.clone()
        for processor, placed in jobs:
            processor.apply(adjusted, placed)
        empty = (adjusted.amax(-1) == -torch.inf).tolist()
        errors[:] = [
            NOTHING_LEFT if none and error is None else error for none, error in zip(empty, errors, strict=True)
        ]
        return _without_failed(adjusted, errors)

    def _tokens(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        drawn = [i for i, row in enumerate(rows) if self.state.of(row.slot).sampling.temperature > 0]
        if len(drawn) == len(rows):
            return self._draw(logits, rows)
        tokens = self._ops.greedy(logits)
        if drawn:
            at = torch.tensor(drawn, dtype=torch.int64)
            tokens[at] = self._draw(logits.index_select(0, at), [rows[i] for i in drawn])
        return tokens

    def _draw(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        return self._ops.sample(logits, self.state.draw([row.slot for row in rows], [row.position for row in rows]))

    def _logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[SampleRow], errors: Sequence[RowError | None]
    ) -> list[TokenLogprobs | None]:
        result: list[TokenLogprobs | None] = [None] * len(rows)
        wanted = {i: self.state.of(row.slot).sampling.logprobs for i, row in enumerate(rows) if errors[i] is None}
        counts = {i: count for i, count in wanted.items() if count is not None}
        if counts:
            at = torch.tensor(list(counts), dtype=torch.int64)
            values = logprobs(logits.index_select(0, at), tokens.index_select(0, at), list(counts.values()))
            for i, value in zip(counts, values, strict=True):
                result[i] = value
        return result


def _using(processor: Processor, rows: Sequence[SampleRow]) -> list[Placed]:
    if processor.unused:
        return []
    return [Placed(i, row) for i, row in enumerate(rows) if processor.uses(row)]


def finite_errors(ops: Backend, logits: torch.Tensor) -> list[RowError | None]:
    """An error for each row of logits [rows, vocabulary] that holds a NaN or an infinity."""
    return [None if good else NOT_FINITE for good in ops.finite(logits).tolist()]


def _without_failed(logits: torch.Tensor, errors: Sequence[RowError | None]) -> torch.Tensor:
    """Zeros in the rows that have failed, so that nothing downstream meets what it is not made for."""
    failed = [i for i, error in enumerate(errors) if error is not None]
    return logits.index_fill(0, torch.tensor(failed, dtype=torch.int64), 0.0) if failed else logits
