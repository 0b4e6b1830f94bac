"""What a base model has that an adapter may change, by the paths that PEFT knows it by."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from kernels.lora.weights import LayerModule, LoraShapes
from worker.models.checkpoint import Checkpoint
from worker.models.registry import find
from worker.models.spec import Names

EndModule = Literal["head", "embed"]
_QKV: tuple[LayerModule, ...] = ("q", "k", "v")
_GATE_UP: tuple[LayerModule, ...] = ("gate", "up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A module of the base, `out` rows of `inside` inputs. Of a layer it is one of the kernels' `parts`, or several stacked; of those
    outside the layers `end` names it."""

    out: int
    inside: int
    layer: int = -1
    parts: tuple[LayerModule, ...] = ()
    end: EndModule | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """`modules` by path, without `base_model.model.` before it; `tensor` gives one of the base's own weights, by its name."""

    shapes: LoraShapes
    modules: Mapping[str, Target]
    tensor: Callable[[str], torch.Tensor]
    max_rank: int


def base_model(checkpoint: Checkpoint, shapes: LoraShapes, *, max_rank: int) -> BaseModel:
    """Of the checkpoint that is served. All names that its family goes by are known, for adapters know those of transformers' classes."""
    modules: dict[str, Target] = {}
    for names in find(checkpoint.config).names:
        modules.update(_targets(names, shapes))
    return BaseModel(shapes=shapes, modules=modules, tensor=checkpoint.tensor, max_rank=max_rank)


def _targets(names: Names, shapes: LoraShapes) -> Iterator[tuple[str, Target]]:
    sizes = shapes.modules
    for layer in range(shapes.layers):
        for paths, parts in (
            (names.qkv, _QKV),
            (names.gate_up, _GATE_UP),
            ((names.out,), ("o",)),
            ((names.down,), ("down",)),
        ):
            held = [(part,) for part in parts] if len(paths) == len(parts) else [parts]
            for path, group in zip(paths, held, strict=True):
                out = sum(sizes[part][0] for part in group)
                yield path.format(layer), Target(out=out, inside=sizes[group[0]][1], layer=layer, parts=group)
    (hidden, vocab), (rows, inside) = sizes["embed"], sizes["head"]
    yield names.embedding, Target(out=hidden, inside=vocab, end="embed")
    yield names.head, Target(out=rows, inside=inside, end="head")
