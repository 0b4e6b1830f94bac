"""Log-probabilities of a prompt's own tokens, from the positions that a step computes anyway."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from kernels.backend import Prepared
from shared.types import TokenLogprobs
from worker.plan import PromptRows, RowError, StepPlan
from worker.sampling.logprobs import Rank, told
from worker.sampling.sampler import NOT_FINITE, Sampler
from worker.sampling.sending import Array, Send, Sent

TILE = 4 << 20  # logits at a time: 16 MiB of float32, whatever vocabulary and chunk
PromptAnswer = tuple[TokenLogprobs, ...] | RowError
Logits = Callable[[torch.Tensor, torch.Tensor, Prepared], torch.Tensor]  # Decoder.logits
_PARTS = 4  # tensors of a tile: whether all is finite, and those of Ranked


class _Tile(NamedTuple):
    """Rows of a step's hidden states, and the tokens that they predict: `length` of the slot's from `first` on."""

    job: int
    rows: Sent
    slot: int
    first: int
    length: int
    wanted: int


class StagedScores:
    """A step's scores. `run` computes, `read` takes what it gave."""

    def __init__(self, logits: Logits, rank: Rank, tokens: torch.Tensor, tiles: Sequence[_Tile], jobs: int):
        self._logits, self._rank, self._tokens, self._tiles, self._jobs = logits, rank, tokens, tiles, jobs

    @property
    def parts(self) -> int:
        """Tensors that `run` gives."""
        return _PARTS * len(self._tiles)

    def run(self, hidden: torch.Tensor, step: Prepared) -> list[torch.Tensor]:
        """hidden [tokens of the step, hidden size]."""
        return [tensor for tile in self._tiles for tensor in self._tile(tile, hidden, step)]

    def read(self, arrays: Sequence[Array]) -> list[PromptAnswer]:
        """For each of plan.prompts as in StepResult."""
        answers: list[list[TokenLogprobs]] = [[] for _ in range(self._jobs)]
        failed = set()
        for number, tile in enumerate(self._tiles):
            good, *parts = arrays[_PARTS * number : _PARTS * (number + 1)]
            if good:
                answers[tile.job] += told(parts, [tile.wanted] * tile.length)
            else:
                failed.add(tile.job)
        return [NOT_FINITE if job in failed else tuple(answer) for job, answer in enumerate(answers)]

    def _tile(self, tile: _Tile, hidden: torch.Tensor, step: Prepared) -> list[torch.Tensor]:
        logits = self._logits(hidden, tile.rows(), step)
        tokens = self._tokens[tile.slot, tile.first : tile.first + tile.length]
        return [torch.isfinite(logits).all(), *self._rank(logits, tokens, tile.wanted)]


class PromptScorer:
    """Scores the `prompts` of plans. `logits` gives those of some rows of a step's last hidden states, `tokens` is the slots' buffer."""

    def __init__(self, logits: Logits, tokens: torch.Tensor, sampler: Sampler, vocab_size: int):
        self._logits = logits
        self._rank = sampler.rank
        self._tokens = tokens
        self._sampling = sampler.state
        self._rows = max(1, TILE // vocab_size)

    def stage(self, plan: StepPlan, send: Send) -> StagedScores:
        """All that can be done before the hidden states are there."""
        offsets = list(accumulate((chunk.length for chunk in plan.chunks), initial=0))
        tiles = [
            tile
            for number, job in enumerate(plan.prompts)
            for tile in self._tiles(number, plan, job, offsets[job.chunk], send)
        ]
        return StagedScores(self._logits, self._rank, self._tokens, tiles, len(plan.prompts))

    def _tiles(self, number: int, plan: StepPlan, job: PromptRows, offset: int, send: Send) -> Iterator[_Tile]:
        chunk = plan.chunks[job.chunk]
        wanted = self._sampling.of(chunk.slot).sampling.prompt_logprobs or 0
        for first in range(job.first, job.first + job.length, self._rows):
            count = min(self._rows, job.first + job.length - first)
            row = offset + first - 1 - chunk.start  # the position before predicts it
            rows = send(np.arange(row, row + count))
            yield _Tile(number, rows, chunk.slot, first, count, wanted)
