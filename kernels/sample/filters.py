"""top_k, top_p and min_p as one threshold a row: every token whose scaled logit is at least the threshold stays, ties
included.

Order: temperature, top_k, top_p (of the mass that top_k left), min_p (against the most likely token). A row's
threshold is the same whatever the other rows ask for: sums that decide are float64 over sorted values of that row
alone.
"""

import torch

BLOCK = 1024  # tokens: sums over the vocabulary are made of float32 sums of this many
_HEADS = (
    1024,
    8192,
)  # numbers of most likely tokens in which to look for the nucleus before sorting the whole vocabulary


def threshold(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """scaled float32 [rows, vocabulary] (logits over temperature); top_k int64 (0 off), top_p and min_p float32,
    [rows] each.

    Returns float32 [rows, 1].
    """
    top = scaled.amax(-1, keepdim=True)
    kth = _kth(scaled, (top_k > 0) & (top_k < scaled.shape[1]), top_k)
    lowest = torch.maximum(kth, torch.where(min_p > 0, top[:, 0] + min_p.log(), -torch.inf)[:, None])
    if bool((top_p < 1).any()):
        lowest = torch.maximum(lowest, _nucleus(scaled, top, kth, top_p))
    return torch.minimum(lowest, top)


def block_sums(weights: torch.Tensor) -> torch.Tensor:
    """weights float32 [rows, vocabulary] -> float32 [rows, blocks], the last block filled up with zeros."""
    return blocks(weights).sum(-1)


def blocks(weights: torch.Tensor) -> torch.Tensor:
    """weights [rows, vocabulary] -> [rows, blocks, 1024]."""
    missing = -weights.shape[1] % BLOCK
    return torch.nn.functional.pad(weights, (0, missing)).view(weights.shape[0], -1, BLOCK)


def _kth(scaled: torch.Tensor, limited: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The top_k-th largest value, -inf where top_k is off, [rows, 1]."""
    if not bool(limited.any()):
        return torch.full_like(scaled[:, :1], -torch.inf)
    k = torch.where(limited, top_k, 1)
    ranked = scaled.topk(int(k.max())).values
    return torch.where(limited[:, None], ranked.gather(1, k[:, None] - 1), -torch.inf)


def _nucleus(scaled: torch.Tensor, top: torch.Tensor, kth: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The least likely value that top_p's mass needs, of the values from `kth` up, [rows, 1]."""
    on = (top_p < 1)[:, None]
    mass = block_sums(_weights(scaled, top, kth)).double().sum(-1, keepdim=True)
    wanted = torch.where(on, top_p.double()[:, None] * mass, 0.0)
    for count in sorted({min(n, scaled.shape[1]) for n in (*_HEADS, scaled.shape[1])}):
        ranked = scaled.topk(count).values
        reached = _weights(ranked, top, kth).double().cumsum(-1)
        if bool((reached[:, -1:] >= wanted).all()):
            break
    last = (reached < wanted).sum(-1, keepdim=True).clamp_max(count - 1)
    return torch.where(on, ranked.gather(1, last), -torch.inf)


def _weights(scaled: torch.Tensor, top: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """exp(scaled - top), zero under `lowest`."""
    return torch.where(scaled >= lowest, torch.exp(scaled - top), 0.0)
