"""From logits to a step's result: which rows are greedy, which are drawn, which want logprobs, which cannot be
sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.backend import Backend
from shared.types import TokenLogprobs
from worker.plan import SampleRow
from worker.sampling.logprobs import logprobs
from worker.sampling.state import SamplingState


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sampled:
    """`tokens` int64 [rows] on the device; the rest as in StepResult."""

    tokens: torch.Tensor
    logprobs: list[TokenLogprobs | None]
    errors: list[str | None]


class Sampler:
    """Draws one token a row. Order: min_tokens' mask, temperature, top_k, top_p, min_p."""

    def __init__(self, state: SamplingState, ops: Backend):
        self._state = state
        self._ops = ops

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> Sampled:
        """logits float32 [rows, vocabulary], one row of them for each of `rows`."""
        errors = _errors(logits)
        allowed = self._masked(logits, rows)
        tokens = self._tokens(allowed, rows)
        return Sampled(tokens=tokens, logprobs=self._logprobs(logits, tokens, rows, errors), errors=errors)

    def _masked(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        size = logits.shape[1]  # a model may name an end token that its head does not have
        masked = (self._state.of(row.slot).masked(row.position) for row in rows)
        pairs = [(i, token) for i, tokens in enumerate(masked) for token in tokens if token < size]
        if not pairs:
            return logits
        at, tokens = torch.tensor(pairs, dtype=torch.int64).T
        return logits.index_put((at, tokens), torch.tensor(-torch.inf))

    def _tokens(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        drawn = [i for i, row in enumerate(rows) if self._state.of(row.slot).sampling.temperature > 0]
        if len(drawn) == len(rows):
            return self._draw(logits, rows)
        tokens = self._ops.greedy(logits)
        if drawn:
            at = torch.tensor(drawn, dtype=torch.int64)
            tokens[at] = self._draw(logits.index_select(0, at), [rows[i] for i in drawn])
        return tokens

    def _draw(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        return self._ops.sample(logits, self._state.draw([row.slot for row in rows], [row.position for row in rows]))

    def _logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, rows: Sequence[SampleRow], errors: Sequence[str | None]
    ) -> list[TokenLogprobs | None]:
        result: list[TokenLogprobs | None] = [None] * len(rows)
        wanted = {i: self._state.of(row.slot).sampling.logprobs for i, row in enumerate(rows) if errors[i] is None}
        counts = {i: count for i, count in wanted.items() if count is not None}
        if counts:
            at = torch.tensor(list(counts), dtype=torch.int64)
            values = logprobs(logits.index_select(0, at), tokens.index_select(0, at), list(counts.values()))
            for i, value in zip(counts, values, strict=True):
                result[i] = value
        return result


def _errors(logits: torch.Tensor) -> list[str | None]:
    """A message for each row that holds a NaN or an infinity (minimum and maximum carry both)."""
    lowest, highest = logits.aminmax(dim=-1)
    finite = (torch.isfinite(lowest) & torch.isfinite(highest)).tolist()
    return [None if good else "the model's logits are not finite" for good in finite]
