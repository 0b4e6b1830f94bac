"""Slots for adapters on a GPU: per layer one stack for each projection, all slots' adapters in one tensor.

A slot's place is taken when the stacks are made, so that filling it moves nothing that a captured step points to.
Stacks of embedding and head are made when the first adapter has such a module: they measure a vocabulary.
"""

import numpy as np
import torch

from kernels.lora.slots import NONE, BatchAdapters
from kernels.lora.triton import LoraStack
from kernels.lora.weights import LoraPair, LoraShapes, LoraWeights, Module, check

Place = tuple[int, str]  # a layer (-1 outside) and one of the groups
EMBED: Place = (-1, "embed")
HEAD: Place = (-1, "head")
_GROUPS: dict[str, tuple[Module, ...]] = {
    "qkv": ("q", "k", "v"),
    "o": ("o",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
    "head": ("head",),
    "embed": ("embed",),
}
_OUTSIDE = ("head", "embed")


class GpuSlots:
    """See kernels.lora.slots.AdapterSlots. A slot is filled on the current stream of the calling thread."""

    def __init__(self, shapes: LoraShapes, *, slots: int, max_rank: int, dtype: torch.dtype, device: torch.device):
        self.shapes, self.slots, self.max_rank = shapes, slots, max_rank
        self._dtype, self._device = dtype, device
        self._held = [False] * slots
        self._stacks: dict[Place, LoraStack] = {}
        for group, modules in _GROUPS.items():
            if group not in _OUTSIDE and all(module in shapes.modules for module in modules):
                self._stacks.update({(layer, group): self._empty(group) for layer in range(shapes.layers)})

    def stack(self, place: Place) -> LoraStack | None:
        """The adapters of one projection; None where no adapter may have or has any."""
        return self._stacks.get(place)

    @property
    def stacks(self) -> int:
        """How many there are: changes with what a step that was recorded would not know."""
        return len(self._stacks)

    def holds(self, slot: int) -> bool:
        """Whether the slot is filled."""
        return self._held[slot]

    def nbytes(self, weights: LoraWeights) -> int:
        """Bytes of the adapter in the slots' dtype."""
        return sum((pair.a.numel() + pair.b.numel()) * self._dtype.itemsize for _, _, pair in weights.pairs())

    @torch.inference_mode()
    def install(self, slot: int, weights: LoraWeights) -> None:
        """Copy the adapter into the slot. LoraMisfit where it does not fit; the slot is then as it was."""
        check(weights, self.shapes, self.max_rank)
        self.clear(slot)
        for layer, module, pair in weights.pairs():
            group = next(name for name, modules in _GROUPS.items() if module in modules)
            self._put(slot, (layer, group), _GROUPS[group].index(module), pair)
        if self._device.type == "cuda":  # steps run on a stream of their own, and may name the slot from now on
            torch.cuda.current_stream(self._device).synchronize()
        self._held[slot] = True

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Empty the slot. Its place stays."""
        for stack in self._stacks.values():
            stack.clear(slot)
        self._held[slot] = False

    def _put(self, slot: int, place: Place, module: int, pair: LoraPair) -> None:
        stack = self._stacks.get(place)
        if stack is None:
            stack = self._stacks[place] = self._empty(place[1])
        stack.put(slot, module, pair.a.T if place == EMBED else pair.a, pair.b, pair.scale)

    def _empty(self, group: str) -> LoraStack:
        outs, ins = zip(*(self.shapes.modules[module] for module in _GROUPS[group]), strict=True)
        return LoraStack.empty(
            outs, ins[0], slots=self.slots, max_rank=self.max_rank, dtype=self._dtype, device=self._device,
            by_token=group == "embed",
        )  # fmt: skip


def named(adapters: BatchAdapters | None) -> BatchAdapters | None:
    """None where no chunk runs with an adapter. LookupError where one names an empty slot."""
    if adapters is None or (adapters.of_chunk == NONE).all():
        return None
    slots = adapters.slots
    if not isinstance(slots, GpuSlots):
        raise TypeError(f"slots of another backend: {type(slots).__name__}")
    for slot in np.unique(adapters.of_chunk[adapters.of_chunk != NONE]):
        if not slots.holds(int(slot)):
            raise LookupError(f"adapter slot {slot} is empty")
    return adapters
