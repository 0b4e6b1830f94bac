"""Low-rank adapters as the kernels take them, whatever file they came from (Hu et al., 2021: W + scale * B A)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

LayerModule = Literal["q", "k", "v", "o", "gate", "up", "down"]
Module = Literal["q", "k", "v", "o", "gate", "up", "down", "head", "embed"]
LAYER_MODULES: tuple[LayerModule, ...] = get_args(LayerModule)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoraPair:
    """Adds scale * b @ (a @ x) to a projection's result. `a` [rank, in], `b` [out, rank], of any float dtype; `scale`
    is alpha / rank (alpha / sqrt(rank) for rsLoRA). Of the embedding, `in` is the vocabulary: a token takes a column
    of `a`.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Rows of `a`."""
        return self.a.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoraWeights:
    """One adapter. `layers` has an entry a layer of the model; modules that the adapter leaves alone are absent. Ranks
    may differ from module to module. Weights that a checkpoint fuses (`qkv_proj`) are given as their parts: the same
    `a`, the rows of `b` that belong to each.
    """

    layers: tuple[Mapping[LayerModule, LoraPair], ...]
    head: LoraPair | None = None
    embed: LoraPair | None = None

    def pairs(self) -> Iterator[tuple[int, Module, LoraPair]]:
        """(layer, module, pair) of all; layer -1 for those outside the layers."""
        for number, layer in enumerate(self.layers):
            for module, pair in layer.items():
                yield number, module, pair
        if self.head is not None:
            yield -1, "head", self.head
        if self.embed is not None:
            yield -1, "embed", self.embed

    @property
    def rank(self) -> int:
        """The largest of all modules; 0 of an adapter without any."""
        return max((pair.rank for _, _, pair in self.pairs()), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraShapes:
    """The base model's projections, (out, in) each, equal in all `layers`. `embed` is (hidden, vocabulary)."""

    layers: int
    modules: Mapping[Module, tuple[int, int]] = field(hash=False)


class LoraMisfit(ValueError):
    """An adapter that does not fit the model or the slots. The message names the module at fault."""


def check(weights: LoraWeights, shapes: LoraShapes, max_rank: int) -> None:
    """LoraMisfit where a layer, a module's shape or a rank is not what the slots were made for."""
    if len(weights.layers) != shapes.layers:
        raise LoraMisfit(f"the adapter has {len(weights.layers)} layers, the model {shapes.layers}")
    for layer, module, pair in weights.pairs():
        where = module if layer < 0 else f"layer {layer} {module}"
        if module not in shapes.modules:
            raise LoraMisfit(f"{where}: the model has no such projection")
        out, inside = shapes.modules[module]
        if not 0 < pair.rank <= max_rank:
            raise LoraMisfit(f"{where}: rank {pair.rank} is over the largest served, {max_rank}")
        if tuple(pair.a.shape) != (pair.rank, inside) or tuple(pair.b.shape) != (out, pair.rank):
            shape = f"a {list(pair.a.shape)}, b {list(pair.b.shape)}"
            raise LoraMisfit(f"{where}: {shape} do not fit a projection from {inside} to {out}")
