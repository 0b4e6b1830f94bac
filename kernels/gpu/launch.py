"""The one place where kernels are started."""

from collections.abc import Callable
from typing import Any

import torch

from kernels.gpu.arch import Arch, present
from kernels.gpu.tiles import Tile, Tiles, in_use

Grid = tuple[int, ...]
Start = Callable[[Any, Grid, tuple[Any, ...], dict[str, Any]], None]  # kernel, grid, arguments, constants and options


def start(kernel: Any, grid: Grid, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Compile the kernel where that has not been done, and launch it."""
    kernel[grid](*args, **options)


class Launcher:
    """Starts kernels on one GPU with the tiles of its architecture. `exact`: multiplications and additions are not
    fused, so that equal formulas give equal bits in different kernels. `start` is what is done with a launch.
    """

    def __init__(self, arch: Arch, tiles: Tiles, *, exact: bool = False, start: Start = start):
        self.arch = arch
        self.tiles = tiles
        self._start = start
        self._options: dict[str, Any] = {"enable_fp_fusion": False} if exact else {}

    @classmethod
    def present(cls, *, exact: bool = False) -> "Launcher":
        """For the GPU that is there, with the table in use. NoGpu (kernels.gpu.arch) where there is none, BadTiles
        (kernels.gpu.tile_rules) where the table cannot be used.
        """
        arch = present()
        return cls(arch, Tiles.of(arch, in_use()), exact=exact)

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""
        return self.arch.device

    def tile(self, kernel: str, size: int | None = None) -> Tile:
        """See Tiles.find."""
        return self.tiles.find(kernel, size)

    def run(self, kernel: Any, grid: Grid, *args: Any, tile: Tile, **constants: Any) -> None:
        """Start `kernel` over `grid`; an empty grid starts nothing. The tile's blocks and `constants` are its constants."""
        if 0 in grid:
            return
        blocks = {name: value for name, value in tile.blocks.items() if name in kernel.arg_names}
        options = {**blocks, **constants, **self._options, "num_warps": tile.warps, "num_stages": tile.stages}
        self._start(kernel, grid, args, options)


def up(count: int, size: int) -> int:
    """How many pieces of `size` cover `count`."""
    return -(-count // size)


def power_of_two(count: int) -> int:
    """The least power of two that is not under `count` >= 1."""
    return 1 << (count - 1).bit_length()
