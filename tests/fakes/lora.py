"""Adapters with random weights, for whatever shapes a runner's slots are made for."""

from collections.abc import Sequence

import torch

from kernels.lora.weights import LAYER_MODULES, LoraPair, LoraShapes, LoraWeights, Module

EVERYTHING: tuple[Module, ...] = (*LAYER_MODULES, "head", "embed")


def random_adapter(
    shapes: LoraShapes, seed: int, *, rank: int = 4, modules: Sequence[Module] = EVERYTHING
) -> LoraWeights:
    """Large enough that tokens differ from the base's."""
    draw = torch.Generator().manual_seed(seed)

    def pair(module: Module) -> LoraPair:
        n, k = shapes.modules[module]
        a, b = torch.randn(rank, k, generator=draw) / k**0.5, torch.randn(n, rank, generator=draw) / rank**0.5
        return LoraPair(a=a, b=b, scale=0.7)

    return LoraWeights(
        layers=tuple({m: pair(m) for m in LAYER_MODULES if m in modules} for _ in range(shapes.layers)),
        head=pair("head") if "head" in modules else None,
        embed=pair("embed") if "embed" in modules else None,
    )
