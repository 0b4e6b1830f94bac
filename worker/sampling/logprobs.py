"""Log-probabilities of the raw logits (before temperature, masks and filters), float32."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kernels.backend import Backend
from kernels.sample.filters import block_sums
from shared.types import TokenLogprobs
from worker.sampling.sending import Array


class Ranked(NamedTuple):
    """`own` float32 [rows] of the rows' tokens; `values` float32 and `ids` int64 [rows, most wanted] of the most likely."""

    own: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor


Rank = Callable[[torch.Tensor, torch.Tensor, int], Ranked]


def ranking(ops: Backend) -> Rank:
    """`ranked`, or what the backend's kernels make of it."""
    kernels = ops.logit_kernels
    return ranked if kernels is None else lambda logits, tokens, most: Ranked(*kernels.ranked(logits, tokens, most))


def log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """log sum exp over the vocabulary, float32 [rows, 1], in the fixed blocks of the sampler."""
    top = logits.amax(-1, keepdim=True)
    return top + block_sums(torch.exp(logits - top)).double().sum(-1, keepdim=True).log().float()


def ranked(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> Ranked:
    """logits float32 [rows, vocabulary], tokens int64 [rows] -> each row's token and its `most` most likely."""
    normaliser = log_normaliser(logits)
    best = logits.topk(min(most, logits.shape[1]))
    own = (logits.gather(1, tokens[:, None]) - normaliser)[:, 0]
    return Ranked(own, best.values - normaliser, best.indices)


def told(parts: Sequence[Array], wanted: Sequence[int]) -> list[TokenLogprobs]:
    """`Ranked`'s parts as they are told: of each row the `wanted[row]` most likely, descending (equal values by ascending token)."""
    rows = zip(*(part.tolist() for part in parts), wanted, strict=True)
    return [TokenLogprobs(sampled=sampled, top=_sorted(some, of, count)) for sampled, of, some, count in rows]


def _sorted(ids: list[int], values: list[float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))[:count])
