"""Adapters packed for the compiled kernels, a piece of memory each, given back when the slot is cleared."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu import abi
from kernels.cpu.engine import Engine
from kernels.lora.slots import NONE, BatchAdapters
from kernels.lora.weights import LAYER_MODULES, LoraPair, LoraShapes, LoraWeights, Module, check

_LINE = 64  # bytes: each module's parts begin at one
_BEYOND = 2048  # bytes behind `b` that a step of tiles reads, and multiplies with zeros: nothing there may be infinite


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Adapter:
    """`struct` points into the rest."""

    struct: abi.AdapterStruct
    modules: ctypes.Array[abi.LoraStruct]
    memory: torch.Tensor

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Installed:
    """What the chunks of a step run with: the address of each one's OctavoAdapter or 0, and what keeps them in memory."""

    addresses: npt.NDArray[np.int64]
    kept: tuple[_Adapter, ...]


class CpuSlots:
    """See kernels.lora.slots.AdapterSlots."""

    def __init__(self, engine: Engine, shapes: LoraShapes, *, slots: int, max_rank: int, dtype: torch.dtype):
        self.shapes, self.slots, self.max_rank = shapes, slots, max_rank
        self._engine, self._dtype = engine, dtype
        self._held: list[_Adapter | None] = [None] * slots

    def nbytes(self, weights: LoraWeights) -> int:
        """Bytes of the packed adapter."""
        return sum(sum(self._sizes(module, pair)) for _, module, pair in weights.pairs())

    def install(self, slot: int, weights: LoraWeights) -> None:
        """Pack the adapter into the slot."""
        check(weights, self.shapes, self.max_rank)
        memory = self._engine.memory(self.nbytes(weights) + _BEYOND)
        modules = (abi.LoraStruct * (self.shapes.layers * len(LAYER_MODULES) + 2))()
        at = memory.data_ptr()
        for number, module, pair in self._numbered(weights):
            a_size, b_size = self._sizes(module, pair)
            self._pack(module, pair, at, at + a_size)
            modules[number] = abi.LoraStruct(at, at + a_size, pair.rank, pair.scale)
            at += a_size + b_size
        struct = abi.AdapterStruct(ctypes.addressof(modules), self.shapes.layers, weights.rank)
        self._held[slot] = _Adapter(struct=struct, modules=modules, memory=memory)

    def clear(self, slot: int) -> None:
        """Empty the slot; its memory goes when no step holds it any more."""
        self._held[slot] = None

    def held(self, slot: int) -> _Adapter:
        """What lies in the slot. LookupError where nothing does."""
        held = self._held[slot]
        if held is None:
            raise LookupError(f"adapter slot {slot} is empty")
        return held

    def _numbered(self, weights: LoraWeights) -> Iterator[tuple[int, Module, LoraPair]]:
        """Each module with its place in OctavoAdapter.modules."""
        inside: dict[Module, int] = {module: place for place, module in enumerate(LAYER_MODULES)}
        ends: dict[Module, int] = {"head": 0, "embed": 1}
        for layer, module, pair in weights.pairs():
            outside = layer < 0
            first = (self.shapes.layers if outside else layer) * len(LAYER_MODULES)
            yield first + (ends if outside else inside)[module], module, pair

    def _sizes(self, module: Module, pair: LoraPair) -> tuple[int, int]:
        """Bytes of packed `a` and `b`, whole lines."""
        a, b = ctypes.c_int64(), ctypes.c_int64()
        k, n = pair.a.shape[1], pair.b.shape[0]
        self._engine.lib.octavo_lora_sizes(pair.rank, k, n, abi.DTYPES[self._dtype], ctypes.byref(a), ctypes.byref(b))
        rows = k * _up(pair.rank, 8) if module == "embed" else a.value
        return _up(rows * self._dtype.itemsize, _LINE), _up(b.value * self._dtype.itemsize, _LINE)

    def _finite(self, half: torch.Tensor) -> torch.Tensor:
        """In the slots' dtype; what is beyond its range becomes the largest number there is."""
        most = torch.finfo(self._dtype).max
        return half.to(self._dtype).clamp(-most, most).contiguous()

    def _pack(self, module: Module, pair: LoraPair, a_at: int, b_at: int) -> None:
        a, b = self._finite(pair.a), self._finite(pair.b)
        if module == "embed":
            table = torch.nn.functional.pad(a.T, (0, _up(pair.rank, 8) - pair.rank)).contiguous()
            ctypes.memmove(a_at, table.data_ptr(), table.numel() * table.element_size())
        self._engine.lib.octavo_lora_pack(
            None if module == "embed" else a.data_ptr(), b.data_ptr(), pair.rank, a.shape[1], b.shape[0],
            abi.DTYPES[self._dtype], a_at, b_at,
        )  # fmt: skip


def installed(adapters: BatchAdapters | None) -> Installed | None:
    """None where no chunk runs with an adapter. LookupError where one names an empty slot."""
    if adapters is None or (adapters.of_chunk == NONE).all():
        return None
    slots = adapters.slots
    if not isinstance(slots, CpuSlots):
        raise TypeError(f"slots of another backend: {type(slots).__name__}")
    held = {int(slot): slots.held(int(slot)) for slot in np.unique(adapters.of_chunk) if slot != NONE}
    addresses = [held[slot].address if slot != NONE else 0 for slot in adapters.of_chunk.tolist()]
    return Installed(addresses=np.array(addresses, dtype=np.int64), kept=tuple(held.values()))


def _up(count: int, to: int) -> int:
    return -(-count // to) * to
