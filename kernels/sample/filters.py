"""top_k, top_p and min_p as one threshold a row: every token whose scaled logit is at least the threshold stays, ties
included.

Order: temperature, top_k, top_p (of the mass that top_k left), min_p (against the most likely token). A row's
threshold is the same whatever the other rows ask for: sums that decide are float64 over sorted values of that row
alone.
"""

import torch

BLOCK = 1024  # tokens: sums over the vocabulary are made of float32 sums of this many
Filters = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # top_k, top_p, min_p
_HEADS = (64, 1024, 8192)  # numbers of most likely tokens in which to look for the nucleus before sorting everything


def threshold(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """scaled float32 [rows, vocabulary] (logits over temperature); top_k int64 (0 off), top_p and min_p float32,
    [rows] each.

    Returns float32 [rows, 1].
    """
    top = scaled.amax(-1, keepdim=True)
    return lowest_kept(scaled, torch.exp(scaled - top), top, (top_k, top_p, min_p))


def filtered(filters: Filters) -> bool:
    """Whether any row asks for any of them."""
    top_k, top_p, min_p = filters
    return bool(((top_k > 0) | (top_p < 1) | (min_p > 0)).any())


def lowest_kept(scaled: torch.Tensor, weights: torch.Tensor, top: torch.Tensor, filters: Filters) -> torch.Tensor:
    """`threshold` where weights = exp(scaled - top) and top, the largest of each row, are there already; -inf where nothing is filtered."""
    top_k, top_p, min_p = filters
    limited = (top_k > 0) & (top_k < scaled.shape[1])
    lowest = torch.where(min_p > 0, top[:, 0] + min_p.log(), -torch.inf)[:, None]
    for rows, find in ((_rows(limited), _kth), (_rows(top_p < 1), _nucleus)):
        if len(rows):
            lowest[rows] = torch.maximum(lowest[rows], find(scaled, weights, rows, filters))
    return torch.minimum(lowest, top)


def block_sums(weights: torch.Tensor) -> torch.Tensor:
    """weights float32 [rows, vocabulary] -> float32 [rows, blocks], the last block filled up with zeros."""
    return blocks(weights).sum(-1)


def blocks(weights: torch.Tensor) -> torch.Tensor:
    """weights [rows, vocabulary] -> [rows, blocks, 1024]."""
    missing = -weights.shape[1] % BLOCK
    return torch.nn.functional.pad(weights, (0, missing)).view(weights.shape[0], -1, BLOCK)


def _rows(chosen: torch.Tensor) -> torch.Tensor:
    return chosen.nonzero()[:, 0]


def _kth(scaled: torch.Tensor, _weights: torch.Tensor, rows: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The top_k-th largest value of each of `rows`, -inf where top_k is off, [rows, 1]."""
    top_k = filters[0].index_select(0, rows)
    limited = (top_k > 0) & (top_k < scaled.shape[1])
    if not bool(limited.any()):
        return scaled.new_full((len(rows), 1), -torch.inf)
    k = torch.where(limited, top_k, 1)
    ranked = scaled.index_select(0, rows).topk(int(k.max())).values
    return torch.where(limited[:, None], ranked.gather(1, k[:, None] - 1), -torch.inf)


def _nucleus(scaled: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The least likely value that top_p's mass needs, of the values that top_k leaves, of each of `rows`, [rows, 1]."""
    kth = _kth(scaled, weights, rows, filters)
    scaled, weights = scaled.index_select(0, rows), weights.index_select(0, rows)
    if bool((kth > -torch.inf).any()):
        weights = weights.masked_fill(scaled < kth, 0.0)
    wanted = filters[1].index_select(0, rows).double()[:, None] * block_sums(weights).double().sum(-1, keepdim=True)
    found = torch.full_like(kth, -torch.inf)
    left = torch.arange(len(rows), device=rows.device)  # rows whose nucleus has not been found
    for count in sorted({min(n, scaled.shape[1]) for n in (*_HEADS, scaled.shape[1])}):
        last, reached = _within(scaled, kth, wanted, left, count)
        found[left] = last
        left = left[~reached]
        if not len(left):
            break
    return found


def _within(
    scaled: torch.Tensor, kth: torch.Tensor, wanted: torch.Tensor, left: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the rows `left`: the least likely of the first `count` values that the mass needs, [left, 1], and whether these reach it."""
    ranked = scaled.index_select(0, left).topk(count).values
    weights = torch.exp(ranked - ranked[:, :1]).masked_fill(ranked < kth.index_select(0, left), 0.0)
    reached = weights.double().cumsum(-1)
    wanted = wanted.index_select(0, left)
    last = (reached < wanted).sum(-1, keepdim=True).clamp_max(count - 1)
    return ranked.gather(1, last), reached[:, -1] >= wanted[:, 0]
