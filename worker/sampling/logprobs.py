"""Log-probabilities of the raw logits (before temperature, masks and filters), float32."""

from collections.abc import Sequence

import torch

from kernels.sample.filters import block_sums
from shared.types import TokenLogprobs


def log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """log sum exp over the vocabulary, float32 [rows, 1], in the fixed blocks of the sampler."""
    top = logits.amax(-1, keepdim=True)
    return top + block_sums(torch.exp(logits - top)).double().sum(-1, keepdim=True).log().float()


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, wanted: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of logits float32 [rows, vocabulary]: the value of its token, and of the `wanted[row]` most likely,
    descending (equal values by ascending token).
    """
    normaliser = log_normaliser(logits)
    sampled = (logits.gather(1, tokens[:, None]) - normaliser)[:, 0].tolist()
    best = logits.topk(min(max(wanted), logits.shape[1]))
    values, ids = (best.values - normaliser).tolist(), best.indices.tolist()
    return [
        TokenLogprobs(sampled=own, top=_ranked(ids[row], values[row], count))
        for row, (own, count) in enumerate(zip(sampled, wanted, strict=True))
    ]


def _ranked(ids: list[int], values: list[float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))[:count])
