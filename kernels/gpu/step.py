"""A step's metadata on a GPU: worked out by arrays on the host, laid into one int32 buffer, sent in one copy.

The same buffer serves CUDA graphs: `layout` depends on a step's sizes alone, so that a captured step reads the places
that the next step of equal sizes fills.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.attention.spec import AttentionSpec
from kernels.attention.triton import AttentionStep, attention_tile, queries_of
from kernels.attn_in.triton import Positions
from kernels.gpu.adapters import GpuSlots, named
from kernels.gpu.launch import Launcher
from kernels.kv.triton import GpuKVPool
from kernels.lora.slots import BatchAdapters
from kernels.lora.triton import LoraStep, jobs, most_jobs
from kernels.prepare.reference import Batch, chunk_of_token, position_of_token
from kernels.rotary.table import RotaryTable

_ALIGN = 4  # int32 values: each array starts at 16 bytes, which decides how the compiler loads it
_Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuStep:
    """What the GPU ops take as a prepared step. `turns` are whole tables on the device."""

    tokens: int
    at: Positions
    attention: AttentionStep
    turns: tuple[RotaryTable, ...]
    fixed: bool
    adapters: "Adapted | None" = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Adapted:
    """A step's adapters. `slot_of_token` int32 [tokens]: of it are those of the head's rows taken."""

    slots: GpuSlots
    step: LoraStep
    slot_of_token: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HostStep:
    """A step before it is sent: its arrays by name, and what the host must know of them."""

    arrays: Mapping[str, _Ints]
    longest: int
    single: bool
    adapters: BatchAdapters | None = None
    job_rows: int = 0  # tokens of an adapter job

    @property
    def kind(self) -> tuple[int, ...]:
        """See kernels.prepare.staged.Staged: with adapters, what decides their launches."""
        if self.adapters is None:
            return ()
        assert isinstance(self.adapters.slots, GpuSlots)
        return (self.job_rows, self.adapters.slots.stacks)

    def flat(self) -> _Ints:
        """All arrays in one, each at a multiple of 16 bytes."""
        flat = np.zeros(sum(_up(array.size) for array in self.arrays.values()), dtype=np.int32)
        for (start, shape), array in zip(self.layout().values(), self.arrays.values(), strict=True):
            flat[start : start + array.size] = array.reshape(-1)
            del shape
        return flat

    def layout(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """First value and shape of each array in `flat`."""
        found, start = {}, 0
        for name, array in self.arrays.items():
            found[name] = (start, array.shape)
            start += _up(array.size)
        return found


def host_step(
    launch: Launcher,
    batch: Batch,
    pool: GpuKVPool,
    specs: tuple[AttentionSpec, ...],
    *,
    fixed: bool,
    longest: int | None = None,
) -> HostStep:
    """Positions must lie inside the block tables. `longest` is what splits and tables are made for, adapters' jobs then being filled up to
    what any step of so many tokens may need; without it, all is the batch's own.
    """
    starts, lengths = batch.starts, batch.lengths
    ends, chunk, position = starts + lengths, chunk_of_token(batch), position_of_token(batch)
    reach, single = longest or int(ends.max()), bool((lengths == 1).all())
    tables = batch.tables[:, : -(-reach // pool.block_size)].cpu().numpy()
    place = tables[chunk, position // pool.block_size] * pool.block_size + position % pool.block_size
    arrays = {
        "position": position,
        "place": place,
        "chunk_of_token": chunk,
        "chunks": np.stack((np.cumsum(lengths) - lengths, starts, lengths), axis=1),
        "tables": tables,
    }
    for queries in sorted(_queries(launch, specs, pool.dtype, single=single, fixed=fixed)):
        arrays[f"tiles.{queries}"] = _tiles(starts, lengths, queries)
    adapters, job_rows = named(batch.adapters), 0
    if adapters is not None:
        own = adapters.of_chunk[chunk]
        found, job_rows = _adapted_arrays(own, adapters.slots.slots, fixed=fixed, fill=longest is not None)
        arrays |= found
    return HostStep(
        arrays={name: np.ascontiguousarray(array, dtype=np.int32) for name, array in arrays.items()},
        longest=reach,
        single=single,
        adapters=adapters,
        job_rows=job_rows,
    )


def device_step(host: HostStep, flat: torch.Tensor, turns: tuple[RotaryTable, ...], *, fixed: bool) -> GpuStep:
    """`flat` is host.flat() on the device, or a longer buffer that begins with it."""
    views = {
        name: flat[start : start + int(np.prod(shape))].view(shape) for name, (start, shape) in host.layout().items()
    }
    tiles = {int(name.partition(".")[2]): view for name, view in views.items() if name.startswith("tiles.")}
    return GpuStep(
        tokens=len(views["position"]),
        at=Positions(position=views["position"], place=views["place"]),
        attention=AttentionStep(
            chunks=views["chunks"],
            tables=views["tables"],
            chunk_of_token=views["chunk_of_token"],
            tiles=tiles,
            longest=host.longest,
            single=host.single,
        ),
        turns=turns,
        fixed=fixed,
        adapters=_adapted(host, views),
    )


def _adapted(host: HostStep, views: Mapping[str, torch.Tensor]) -> Adapted | None:
    if host.adapters is None:
        return None
    assert isinstance(host.adapters.slots, GpuSlots)
    return Adapted(
        slots=host.adapters.slots,
        step=LoraStep(order=views["order"], slots=views["slots"], jobs=views["jobs"], rows=host.job_rows),
        slot_of_token=views["slot_of_token"],
    )


def _adapted_arrays(
    slots: npt.NDArray[np.int64], count: int, *, fixed: bool, fill: bool
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """LoraStep's arrays by name, of the slot of each token, and its rows; `count` is how many slots there are."""
    order, made, rows = jobs(slots, fixed=fixed)
    own = slots[order]
    if fill:
        spare = (0, len(slots) - len(order))
        order, own = np.pad(order, spare), np.pad(own, spare)
        made = np.pad(made, ((0, most_jobs(len(slots), count, rows) - len(made)), (0, 0)))
    return {"order": order, "slots": own, "jobs": made, "slot_of_token": slots}, rows


def _queries(
    launch: Launcher, specs: tuple[AttentionSpec, ...], dtype: torch.dtype, *, single: bool, fixed: bool
) -> set[int]:
    """Queries of a tile, for each kind of attention in the model."""
    return {
        queries_of(
            attention_tile(launch, spec.head_dim, dtype, single=single, fixed=fixed), spec.heads // spec.kv_heads
        )
        for spec in specs
    }


def _tiles(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], queries: int) -> npt.NDArray[np.int64]:
    """[tiles, 2]: chunk, first token's offset in it. Those that look back furthest come first: they take longest."""
    counts = -(-lengths // queries)
    chunk = np.repeat(np.arange(len(lengths)), counts)
    offset = (np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)) * queries
    order = np.argsort(-(starts[chunk] + offset), kind="stable")
    return np.stack((chunk[order], offset[order]), axis=1)


def _up(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN
