"""Which tiles are tried: from the one in the table, step by step, to whatever neighbour is faster."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kernels.gpu.tile_rules import BLOCKS, STAGES, WARPS
from kernels.gpu.tiles import Tile

GAIN = 0.02  # of the time: less is taken for noise
# Kernels that walk in a loop, which is what stages are for.
_WALKING = ("greedy", "sample", "logprobs", "lora.shrink", "matmul", "attention")
# What a size or another tile settles: an adapter's job has so many tokens; both tiles of a product sum in equal steps.
_SETTLED = {
    "lora.shrink": ("BLOCK_M",),
    "lora.expand": ("BLOCK_M",),
    "matmul.few": ("BLOCK_K",),
    "matmul.many": ("BLOCK_K",),
}
_OWN_WARPS = ("rms_norm",)  # its blocks say how many

Cost = Callable[[Tile], float | None]


@dataclass(kw_only=True)
class Found:
    """`cost` in shares of what the first tile takes; `tried` are all tiles that were judged, the first one too, `refused` those of them
    that cannot be used.
    """

    tile: Tile
    cost: float = 1.0
    tried: list[Tile] = field(default_factory=list)
    refused: list[Tile] = field(default_factory=list)


def neighbours(kernel: str, tile: Tile) -> Iterator[Tile]:
    """Tiles that differ in one number, by one step."""
    for name, (least, most) in BLOCKS[kernel].items():
        if name not in _SETTLED.get(kernel, ()):
            for value in _steps(tile[name], least, most):
                yield replace(tile, blocks={**tile.blocks, name: value})
    if kernel not in _OWN_WARPS:
        yield from (replace(tile, warps=warps) for warps in _steps(tile.warps, *WARPS))
    if kernel.startswith(_WALKING) and kernel != "attention.merge":
        least, most = STAGES
        yield from (
            replace(tile, stages=count) for count in (tile.stages + 1, tile.stages - 1) if least <= count <= most
        )


def _steps(value: int, least: int, most: int) -> Iterator[int]:
    yield from (other for other in (2 * value, value // 2) if least <= other <= most)


def climb(kernel: str, first: Tile, cost: Cost, *, tries: int) -> Found:
    """From `first`, whose cost is 1, to the first neighbour that is faster by GAIN, and on from there, until none is, or `tries` tiles were
    judged. `cost` gives None for a tile that cannot be used.
    """
    found = Found(tile=first, tried=[first])
    while (better := _better(kernel, found, cost, tries)) is not None:
        found.tile, found.cost = better
    return found


def _better(kernel: str, found: Found, cost: Cost, tries: int) -> tuple[Tile, float] | None:
    for tile in neighbours(kernel, found.tile):
        if len(found.tried) > tries:
            return None
        if tile in found.tried:
            continue
        found.tried.append(tile)
        share = cost(tile)
        if share is None:
            found.refused.append(tile)
        elif share < found.cost * (1 - GAIN):
            return tile, share
    return None
