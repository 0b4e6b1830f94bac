"""A step's tokens as the ops need them, worked out once for all layers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.plan import Piece, plan
from kernels.attention.spec import AttentionSpec
from kernels.kv import BLOCK, KVPool
from kernels.rotary.table import RotaryTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One step: chunk c computes positions starts[c] .. starts[c] + lengths[c] - 1 (lengths > 0) of a sequence whose
    blocks are row c of `tables` int64 [chunks, blocks]. Tokens are numbered chunk after chunk.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    tables: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """`cos` and `sin` float32 [tokens, dim / 2], where K and V are written, and how attention is cut. Opaque outside
    the kernels.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    writes: torch.Tensor
    pieces: tuple[Piece, ...]


def chunk_of_token(batch: Batch) -> npt.NDArray[np.int64]:
    """The chunk of each token, [tokens]."""
    return np.repeat(np.arange(len(batch.lengths)), batch.lengths)


def position_of_token(batch: Batch) -> npt.NDArray[np.int64]:
    """The position of each token, [tokens]."""
    before = np.cumsum(batch.lengths) - batch.lengths
    positions: npt.NDArray[np.int64] = np.arange(int(batch.lengths.sum())) + np.repeat(
        batch.starts - before, batch.lengths
    )
    return positions


def prepare(batch: Batch, pool: KVPool, rotary: RotaryTable, spec: AttentionSpec) -> Prepared:
    """Positions must lie inside `rotary` and inside the tables."""
    positions = torch.from_numpy(position_of_token(batch))
    blocks = batch.tables[torch.from_numpy(chunk_of_token(batch)), positions // BLOCK]
    places = blocks * BLOCK + positions % BLOCK
    return Prepared(
        cos=rotary.cos.index_select(0, positions),
        sin=rotary.sin.index_select(0, positions),
        writes=pool.index(places[:, None]),
        pieces=plan(batch.starts, batch.lengths, batch.tables, spec, pool),
    )
