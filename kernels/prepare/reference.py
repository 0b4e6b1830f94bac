"""A step's tokens as the ops need them, worked out once for all layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.plan import Piece, plan
from kernels.attention.spec import AttentionSpec
from kernels.kv import BLOCK, KVPool
from kernels.lora.reference import Adapted, adapted
from kernels.lora.slots import BatchAdapters
from kernels.rotary.table import RotaryTable


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One step: chunk c computes positions starts[c] .. starts[c] + lengths[c] - 1 (lengths > 0) of a sequence whose
    blocks are row c of `tables` int64 [chunks, blocks]. Tokens are numbered chunk after chunk. `adapters` None: all run
    on the base model alone.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    tables: torch.Tensor
    adapters: BatchAdapters | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """What turns queries and keys, table by table (rows of the tokens' positions), where K and V are written, how the
    attention of each spec is cut, and which rows run with adapters. Opaque outside the kernels.
    """

    turns: tuple[RotaryTable, ...]
    writes: torch.Tensor
    pieces: Mapping[AttentionSpec, tuple[Piece, ...]]
    adapted: Adapted | None = None


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


def prepare(
    batch: Batch, pool: KVPool, rotaries: tuple[RotaryTable, ...], specs: tuple[AttentionSpec, ...]
) -> Prepared:
    """For a model whose layers are turned by `rotaries` and attend by `specs`. Positions must lie inside the rotary
    tables and inside the block tables.
    """
    positions = torch.from_numpy(position_of_token(batch))
    blocks = batch.tables[torch.from_numpy(chunk_of_token(batch)), positions // BLOCK]
    places = blocks * BLOCK + positions % BLOCK
    return Prepared(
        turns=tuple(_rows(rotary, positions) for rotary in rotaries),
        writes=pool.index(places[:, None]),
        pieces=_pieces(batch, pool, specs),
        adapted=adapted(batch.adapters, chunk_of_token(batch)),
    )


def _rows(rotary: RotaryTable, positions: torch.Tensor) -> RotaryTable:
    return RotaryTable(cos=rotary.cos.index_select(0, positions), sin=rotary.sin.index_select(0, positions))


def _pieces(batch: Batch, pool: KVPool, specs: tuple[AttentionSpec, ...]) -> Mapping[AttentionSpec, tuple[Piece, ...]]:
    """Specs that see the same positions share their pieces: a window hides nothing from sequences that are shorter."""
    longest = int((batch.starts + batch.lengths).max())
    seen = {
        spec: spec if spec.window is None or spec.window < longest else replace(spec, window=None) for spec in specs
    }
    made = {spec: plan(batch.starts, batch.lengths, batch.tables, spec, pool) for spec in dict.fromkeys(seen.values())}
    return {spec: made[same] for spec, same in seen.items()}
