"""Drawing a token by the inverse of the cumulative distribution, in vocabulary order.

Sums within blocks of 1,024 tokens are float32, across blocks float64, so that every device that gets equal
probabilities draws equally.
"""

from dataclasses import dataclass

import torch

from kernels.sample.filters import BLOCK, Filters, block_sums, blocks, filtered, lowest_kept
from kernels.sample.philox import uniform


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draw:
    """How each row is drawn; all [rows]. `temperature`, `top_p`, `min_p` float32, the rest int64; `temperature` > 0;
    `seed_low` and `seed_high` are the seed's words; `position` is the output position.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed_low: torch.Tensor
    seed_high: torch.Tensor
    position: torch.Tensor
    choice: torch.Tensor


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocabulary] -> int64 [rows]: the most likely token, the lowest of equals."""
    return logits.argmax(-1)


def finite(logits: torch.Tensor) -> torch.Tensor:
    """logits [rows, vocabulary] -> bool [rows]: whether a row holds neither a NaN nor an infinity (its minimum and its
    maximum carry both).
    """
    lowest, highest = logits.aminmax(dim=-1)
    return torch.isfinite(lowest) & torch.isfinite(highest)


def sample(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """logits float32 [rows, vocabulary] (finite, or -inf for what is forbidden) -> int64 [rows]."""
    scaled = logits / draw.temperature[:, None]
    top = scaled.amax(-1, keepdim=True)
    filters = (draw.top_k, draw.top_p, draw.min_p)
    weights = _kept(scaled, top, filters) if filtered(filters) else scaled.sub_(top).exp_()
    return invert(weights, uniform((draw.seed_low, draw.seed_high), draw.position, draw.choice, 0))


def _kept(scaled: torch.Tensor, top: torch.Tensor, filters: Filters) -> torch.Tensor:
    """exp(scaled - top), zero where a filter cuts."""
    weights = (scaled - top).exp_()
    return weights.masked_fill_(scaled < lowest_kept(scaled, weights, top, filters), 0.0)


def invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """weights float32 [rows, vocabulary] >= 0, u float64 [rows] in [0, 1) -> int64 [rows]: the first token at which
    the cumulative weight passes u times the total.
    """
    edges = block_sums(weights).double().cumsum(-1)
    target = u[:, None] * edges[:, -1:]
    block = _first(edges > target, edges.diff(dim=-1, prepend=torch.zeros_like(target)) > 0)
    before = torch.where(block > 0, edges.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = blocks(weights)[torch.arange(len(u), device=u.device), block[:, 0]]
    token = _first(inside.double().cumsum(-1) > target - before, inside > 0)
    return (block * BLOCK + token)[:, 0].clamp_max(weights.shape[1] - 1)


def _first(passed: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """[rows, 1]: the first place that has passed and weighs something; where rounding left none, the last that weighs
    something.
    """
    hit = passed & positive
    last = positive.shape[1] - 1 - positive.flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(hit.any(-1, keepdim=True), hit.to(torch.uint8).argmax(-1, keepdim=True), last)
