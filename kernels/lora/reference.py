"""Low-rank adapters by plain products: rows are taken adapter by adapter, whatever their order in the batch.

An adapter's result is b @ (scale * (a @ x)), both sums in float32, the value between them rounded to the weights' dtype.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.linear import PackedLinear, pack
from kernels.linear.reference import linear_float32
from kernels.lora.slots import NONE, BatchAdapters
from kernels.lora.weights import LoraPair, LoraShapes, LoraWeights, Module, check

Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Pair:
    """`a` of the embedding is a table [vocabulary, rank]."""

    a: PackedLinear | Tensor
    b: PackedLinear
    scale: float


_Packed = dict[tuple[int, Module], _Pair]


class ReferenceSlots:
    """See kernels.lora.slots.AdapterSlots. `threads` is how many the steps run with: it decides how weights are packed."""

    def __init__(self, shapes: LoraShapes, *, slots: int, max_rank: int, dtype: torch.dtype, threads: int):
        self.shapes, self.slots, self.max_rank = shapes, slots, max_rank
        self._dtype, self._threads = dtype, threads
        self._held: list[_Packed | None] = [None] * slots

    def nbytes(self, weights: LoraWeights) -> int:
        """Bytes of the adapter in the slots' dtype."""
        return sum((pair.a.numel() + pair.b.numel()) * self._dtype.itemsize for _, _, pair in weights.pairs())

    def install(self, slot: int, weights: LoraWeights) -> None:
        """Pack the adapter into the slot."""
        check(weights, self.shapes, self.max_rank)
        torch.set_num_threads(self._threads)  # counts for the calling thread alone
        with torch.inference_mode():
            self._held[slot] = {(layer, name): self._packed(name, pair) for layer, name, pair in weights.pairs()}

    def clear(self, slot: int) -> None:
        """Empty the slot."""
        self._held[slot] = None

    def held(self, slot: int) -> _Packed:
        """What lies in the slot. LookupError where nothing does."""
        held = self._held[slot]
        if held is None:
            raise LookupError(f"adapter slot {slot} is empty")
        return held

    def _packed(self, module: Module, pair: LoraPair) -> _Pair:
        a = pair.a.to(self._dtype)
        return _Pair(
            a=a.T.contiguous() if module == "embed" else pack(a),
            b=pack(pair.b.to(self._dtype).contiguous()),
            scale=pair.scale,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Adapted:
    """A step's adapters as the ops take them: `slot_of_row` int64 [tokens], NONE where the base model runs alone."""

    held: dict[int, _Packed]
    slot_of_row: npt.NDArray[np.int64]

    def groups(self, rows: Tensor | None = None) -> Iterator[tuple[_Packed, Tensor]]:
        """Each adapter and its rows: of the step, or by their place among the token numbers `rows`."""
        slots = self.slot_of_row if rows is None else self.slot_of_row[rows.numpy()]
        for slot, packed in self.held.items():
            own = np.flatnonzero(slots == slot)
            if len(own):
                yield packed, torch.from_numpy(own)


def adapted(adapters: BatchAdapters | None, chunk_of_token: npt.NDArray[np.int64]) -> Adapted | None:
    """None where no chunk runs with an adapter. LookupError where one names an empty slot."""
    if adapters is None or (adapters.of_chunk == NONE).all():
        return None
    slots = adapters.slots
    if not isinstance(slots, ReferenceSlots):
        raise TypeError(f"slots of another backend: {type(slots).__name__}")
    named = [int(slot) for slot in np.unique(adapters.of_chunk) if slot != NONE]
    return Adapted(held={slot: slots.held(slot) for slot in named}, slot_of_row=adapters.of_chunk[chunk_of_token])


def add(
    y: Tensor, x: Tensor, step: Adapted, layer: int, module: Module, *, column: int = 0, rows: Tensor | None = None
) -> None:
    """y float32 [rows, ...] += what the adapters add for x [rows, in], from `column` on. `rows`: see Adapted.groups."""
    for packed, own in step.groups(rows):
        pair = packed.get((layer, module))
        if pair is not None:
            assert isinstance(pair.a, PackedLinear)
            delta = linear_float32(linear_float32(x.index_select(0, own), pair.a) * pair.scale, pair.b)
            y[:, column : column + delta.shape[1]].index_add_(0, own, delta)


def add_embedding(y: Tensor, tokens: Tensor, step: Adapted, scale: float) -> None:
    """y float32 [tokens, hidden] += scale * what the adapters add to the embedding."""
    for packed, own in step.groups():
        pair = packed.get((-1, "embed"))
        if pair is not None:
            assert isinstance(pair.a, Tensor)
            shrunk = pair.a.index_select(0, tokens.index_select(0, own)).float() * (pair.scale * scale)
            y.index_add_(0, own, linear_float32(shrunk, pair.b))
