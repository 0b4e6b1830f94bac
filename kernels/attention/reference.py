"""Attention with an online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022), float32 throughout.

One order of sums for prefill and decode alike: within a split of 512 positions the maximum is exact, sums run over
chunks of 64 from left to right, and splits are merged from left to right. Positions that are not seen add exact zeros.
Matrix products get at least 16 rows, because the library sums in another order for very few.
"""

from dataclasses import dataclass

import torch

from kernels.attention.plan import CHUNK, Piece, Split
from kernels.attention.spec import AttentionSpec
from kernels.kv import KVPool
from kernels.prepare.reference import Prepared

_MIN_ROWS = 16
_LOW = -1e30  # a maximum so far that is finite, so that rows that see nothing in a split keep exp() finite


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Partial:
    """Of some KV: the highest score, the sum of exp(score - top), and that of exp(score - top) * v."""

    total: torch.Tensor
    weight: torch.Tensor
    top: torch.Tensor


def attention(q: torch.Tensor, step: Prepared, pool: KVPool, layer: int, spec: AttentionSpec) -> torch.Tensor:
    """q float32 [tokens, heads, head_dim] -> float32 [tokens, heads * head_dim]."""
    out = torch.empty(q.shape[0], spec.heads * spec.head_dim, dtype=torch.float32, device=q.device)
    scaled = q.float() * spec.scale
    for piece in step.pieces[spec]:
        out.index_copy_(0, piece.targets, _attend(scaled, piece, pool, layer, spec))
    return out


def _attend(q: torch.Tensor, piece: Piece, pool: KVPool, layer: int, spec: AttentionSpec) -> torch.Tensor:
    """The results of the piece's kept queries, [kept, heads * head_dim]."""
    rows = _stack(q, piece, spec)
    partials = (_split(rows, split, pool, layer, spec) for split in piece.splits)
    merged = next(partials)
    for partial in partials:
        _merge(merged, partial)
    return _unstack(merged.total.div_(merged.weight), piece, spec)


def _split(rows: torch.Tensor, split: Split, pool: KVPool, layer: int, spec: AttentionSpec) -> _Partial:
    k, v = pool.read(layer, split.index, split.width)
    return _partial(_scores(rows[: split.tiles], k, split, spec.softcap), v)


def _scores(rows: torch.Tensor, k: torch.Tensor, split: Split, softcap: float | None) -> torch.Tensor:
    """rows [n, kv_heads, R, head_dim] x k [n, kv_heads, width, head_dim] -> [n, kv_heads, R, width], -inf where not
    seen.
    """
    scores = rows @ k.transpose(-1, -2)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    n, heads, _, width = scores.shape
    scores.view(n, heads, -1, split.bias.shape[-2], width).add_(split.bias)
    return scores


def _partial(scores: torch.Tensor, v: torch.Tensor) -> _Partial:
    """Softmax over one split. Consumes `scores`."""
    top = scores.amax(-1, keepdim=True).clamp_min_(_LOW)
    p = scores.sub_(top).exp_()
    sums = p.view(*p.shape[:-1], -1, CHUNK).sum(-1)
    flat, values = p.flatten(0, 1), v.flatten(0, 1)
    weight, total = sums[..., :1].clone(), torch.bmm(flat[..., :CHUNK], values[:, :CHUNK])
    for c in range(1, sums.shape[-1]):
        weight.add_(sums[..., c : c + 1])
        total.baddbmm_(flat[..., c * CHUNK : (c + 1) * CHUNK], values[:, c * CHUNK : (c + 1) * CHUNK])
    return _Partial(total=total.view(*p.shape[:-1], -1), weight=weight, top=top)


def _merge(into: _Partial, right: _Partial) -> None:
    """Add the split to the right of all that `into` holds; it covers the first tiles, in place."""
    n = right.top.shape[0]
    total, weight, top = into.total[:n], into.weight[:n], into.top[:n]
    highest = torch.maximum(top, right.top)
    left_share, right_share = torch.exp(top - highest), torch.exp(right.top - highest)
    total.mul_(left_share).add_(right.total.mul_(right_share))
    weight.mul_(left_share).add_(right.weight.mul_(right_share))
    top.copy_(highest)


def _stack(q: torch.Tensor, piece: Piece, spec: AttentionSpec) -> torch.Tensor:
    """[tiles, kv_heads, R, head_dim]: the rows of a KV head are its query heads times the tile's queries, then zeros
    up to 16.
    """
    tiled = q.index_select(0, piece.queries).view(piece.tiles, piece.height, spec.kv_heads, -1, spec.head_dim)
    rows = tiled.permute(0, 2, 3, 1, 4).flatten(2, 3)
    missing = -(-max(0, _MIN_ROWS - rows.shape[2]) // piece.height) * piece.height
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows.contiguous()


def _unstack(rows: torch.Tensor, piece: Piece, spec: AttentionSpec) -> torch.Tensor:
    """The inverse of `_stack`, for the kept queries."""
    group = spec.heads // spec.kv_heads
    shape = (piece.tiles, spec.kv_heads, group, piece.height, spec.head_dim)
    tiled = rows[:, :, : group * piece.height].reshape(shape).permute(0, 3, 1, 2, 4)
    return tiled.reshape(piece.tiles * piece.height, -1).index_select(0, piece.kept)
