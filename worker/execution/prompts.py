"""Log-probabilities of a prompt's own tokens, from the positions that a step computes anyway."""

from collections.abc import Callable
from itertools import accumulate

import torch

from kernels.backend import Prepared
from shared.types import TokenLogprobs
from worker.execution.state import SlotState
from worker.plan import PromptRows, RowError, StepPlan
from worker.sampling.logprobs import logprobs
from worker.sampling.sampler import NOT_FINITE
from worker.sampling.state import SamplingState

TILE = 4 << 20  # logits at a time: 16 MiB of float32, whatever vocabulary and chunk
PromptAnswer = tuple[TokenLogprobs, ...] | RowError
Logits = Callable[[torch.Tensor, torch.Tensor, Prepared], torch.Tensor]  # Decoder.logits


class PromptScorer:
    """Scores the `prompts` of plans. `logits` gives those of some rows of a step's last hidden states."""

    def __init__(self, logits: Logits, slots: SlotState, sampling: SamplingState, vocab_size: int):
        self._logits = logits
        self._slots = slots
        self._sampling = sampling
        self._tile = max(1, TILE // vocab_size)

    def score(self, plan: StepPlan, hidden: torch.Tensor, step: Prepared) -> list[PromptAnswer]:
        """For each of plan.prompts as in StepResult. hidden [tokens of the step, hidden size]."""
        offsets = list(accumulate((chunk.length for chunk in plan.chunks), initial=0))
        return [self._job(plan, job, hidden, step, offsets[job.chunk]) for job in plan.prompts]

    def _job(self, plan: StepPlan, job: PromptRows, hidden: torch.Tensor, step: Prepared, offset: int) -> PromptAnswer:
        chunk = plan.chunks[job.chunk]
        wanted = self._sampling.of(chunk.slot).sampling.prompt_logprobs or 0
        found: list[TokenLogprobs] = []
        for first in range(job.first, job.first + job.length, self._tile):
            count = min(self._tile, job.first + job.length - first)
            row = offset + first - 1 - chunk.start  # the position before predicts it
            logits = self._logits(hidden, torch.arange(row, row + count), step)
            if not bool(torch.isfinite(logits).all()):
                return NOT_FINITE
            found += logprobs(logits, self._slots.tokens[chunk.slot, first : first + count], [wanted] * count)
        return tuple(found)
