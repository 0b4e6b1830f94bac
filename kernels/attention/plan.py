"""How one step's attention is cut into dense pieces. Made once a step, used by every layer.

Queries are cut into *tiles* of consecutive positions of one chunk: of 1 for chunks of one token (decode), of 32 for
the others, so that padding stays small whatever the mix. Tiles are sorted by how far they look back, and KV is walked
in *splits* at multiples of 512 from absolute position 0: the tiles that reach a split are a prefix of the list, so
that short contexts never pay for long ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.spec import AttentionSpec
from kernels.kv import BLOCK, KVPool

CHUNK = 64  # positions: sums over KV are made of partial sums of this many
SPLIT = 512  # positions: one softmax rescaling each
TILE = 32  # queries
_PIECE = 1 << 22  # float32 values of KV and scores that one piece may hold at a time: what the caches keep

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """The first `tiles` tiles against `width` positions of KV. `bias` float32 [tiles, 1, 1, T, width] is 0 or -inf."""

    tiles: int
    width: int
    index: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Some tiles of `height` queries. `queries` int64 [tiles * height] are token numbers (the last one repeated as
    padding); of the results, those at `kept` belong to the tokens `targets`.
    """

    tiles: int
    height: int
    queries: torch.Tensor
    kept: torch.Tensor
    targets: torch.Tensor
    splits: tuple[Split, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tiles:
    """Columns, one entry a tile: its chunk, its first token's number, its first position, its number of queries."""

    chunk: _Ints
    token: _Ints
    position: _Ints
    count: _Ints

    @property
    def end(self) -> _Ints:
        """One past the last position that a tile sees."""
        return self.position + self.count

    def take(self, rows: "_Ints | slice") -> "_Tiles":
        """Some of the tiles."""
        return _Tiles(
            chunk=self.chunk[rows], token=self.token[rows], position=self.position[rows], count=self.count[rows]
        )


def plan(starts: _Ints, lengths: _Ints, tables: torch.Tensor, spec: AttentionSpec, pool: KVPool) -> tuple[Piece, ...]:
    """Chunk c computes positions starts[c] .. starts[c] + lengths[c] - 1; row c of `tables` int64 [chunks, blocks]
    names its blocks.

    Tokens are numbered chunk after chunk.
    """
    pieces = []
    for height, rows in ((1, lengths == 1), (TILE, lengths > 1)):
        if rows.any():
            tiles = _cut(starts, lengths, np.flatnonzero(rows), height)
            pieces += [_piece(part, height, tables, spec, pool) for part in _bounded(tiles, height, spec)]
    return tuple(pieces)


def _cut(starts: _Ints, lengths: _Ints, chunks: _Ints, height: int) -> _Tiles:
    """The chunks' tiles, those that look back furthest first."""
    offsets = np.cumsum(lengths) - lengths
    counts = -(-lengths[chunks] // height)
    chunk = np.repeat(chunks, counts)
    first = (np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)) * height
    tiles = _Tiles(
        chunk=chunk,
        token=offsets[chunk] + first,
        position=starts[chunk] + first,
        count=np.minimum(height, lengths[chunk] - first),
    )
    return tiles.take(np.argsort(-tiles.end, kind="stable"))


def _bounded(tiles: _Tiles, height: int, spec: AttentionSpec) -> Iterator[_Tiles]:
    """Runs of tiles whose temporaries stay under _PIECE."""
    rows = height * spec.heads // spec.kv_heads
    most = max(1, _PIECE // (spec.kv_heads * SPLIT * (2 * spec.head_dim + rows)))
    for first in range(0, len(tiles.chunk), most):
        yield tiles.take(slice(first, first + most))


def _piece(tiles: _Tiles, height: int, tables: torch.Tensor, spec: AttentionSpec, pool: KVPool) -> Piece:
    inside = np.arange(height)
    kept = (inside < tiles.count[:, None]).ravel()
    queries = (tiles.token[:, None] + np.minimum(inside, tiles.count[:, None] - 1)).ravel()
    return Piece(
        tiles=len(tiles.chunk),
        height=height,
        queries=torch.from_numpy(queries),
        kept=torch.from_numpy(np.flatnonzero(kept)),
        targets=torch.from_numpy(queries[kept]),
        splits=tuple(_splits(tiles, height, tables, spec, pool)),
    )


def _splits(tiles: _Tiles, height: int, tables: torch.Tensor, spec: AttentionSpec, pool: KVPool) -> Iterator[Split]:
    ends = tiles.end
    blocks = tables.index_select(0, torch.from_numpy(tiles.chunk))
    for start in range(0, int(ends[0]), SPLIT):
        count = int((ends > start).sum())
        width = min(SPLIT, CHUNK * _power_of_two(-(-(int(ends[0]) - start) // CHUNK)))
        at = torch.arange(start, start + width)
        places = _places(blocks[:count], at, torch.from_numpy(ends[:count]), pool)
        yield Split(
            tiles=count,
            width=width,
            index=pool.index(places),
            bias=_bias(at, torch.from_numpy(tiles.position[:count, None] + np.arange(height)), spec.window),
        )


def _places(blocks: torch.Tensor, at: torch.Tensor, ends: torch.Tensor, pool: KVPool) -> torch.Tensor:
    """Where positions `at` [width] of each tile lie, int64 [tiles, width]; the null place from `ends` on."""
    column = (at // BLOCK).clamp_max(blocks.shape[1] - 1)
    places = blocks.index_select(1, column) * BLOCK + at % BLOCK
    return torch.where(at < ends[:, None], places, pool.null)


def _bias(at: torch.Tensor, queries: torch.Tensor, window: int | None) -> torch.Tensor:
    """Queries' positions [tiles, T] -> float32 [tiles, 1, 1, T, width]: 0 where a query sees a position, else -inf."""
    seen = at <= queries[..., None]
    if window is not None:
        seen &= at > queries[..., None] - window
    return torch.where(seen, 0.0, -torch.inf)[:, None, None]


def _power_of_two(count: int) -> int:
    """The least power of two that is not under `count` >= 1."""
    return 1 << (count - 1).bit_length()
