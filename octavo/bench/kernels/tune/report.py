"""Tunes the table of tiles on the GPU that is there, one entry after another, each kept as it is found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernels.errors import NotOffered
from kernels.gpu.arch import Arch, NoGpu, interpreted, present
from kernels.gpu.tiles import Tile, Tiles, begin, in_use, write
from kernels.gpu.timing import seconds
from octavo.bench import machine
from octavo.bench.kernels.tune import attention, rows, sampler
from octavo.bench.kernels.tune.judge import Judge, Subject, Timer
from octavo.bench.kernels.tune.search import GAIN, climb
from octavo.bench.kernels.tune.sizes import LLAMA, Sizes

_ROUNDS = 3  # of the fastest tile and the table's own in turns, before it takes that one's place
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """`kernels` are the first letters of names in the table, () all of them; `table` is where tiles are read and kept, None the one that
    launches read; `tries` is how many tiles of an entry are timed at most.
    """

    kernels: tuple[str, ...] = ()
    table: Path | None = None
    tries: int = 24


def tune(asked: Asked, told: Callable[[str], None]) -> Row:
    """A row for each entry, as it ends. Raises NoBackend: NoGpu where there is nothing to time on, NotOffered where no kernel is named so,
    kernels.gpu.tile_rules.BadTiles where the table is none.
    """
    arch = _gpu()
    path = asked.table or in_use()
    if not path.exists():
        begin(path)
    write(arch.name, Tiles.of(arch, path), path)  # what cannot be written shows before anything is timed
    found = []
    for row in tuned(arch, subjects(LLAMA, asked.kernels), path, seconds, tries=asked.tries):
        told(line(row))
        found.append(row)
    return {
        "tool": "octavo bench kernels --tune",
        "arch": arch.name,
        "table": str(path),
        "in_use": path.resolve() == in_use().resolve(),
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "tiles": found,
    }


def _gpu() -> Arch:
    if interpreted():
        raise NoGpu("tiles are tuned on a GPU; TRITON_INTERPRET is set, and the times of the interpreter mean nothing")
    if not torch.cuda.is_available():
        raise NoGpu("tiles are tuned on a GPU, and torch finds none")
    return present()


def subjects(sizes: Sizes, kernels: Sequence[str] = ()) -> list[Subject]:
    """What every entry of the table is judged by, or those of some kernels."""
    every = list(
        chain(attention.subjects(sizes), attention.turns(sizes), rows.subjects(sizes), sampler.subjects(sizes))
    )
    chosen = [one for one in every if not kernels or one.kernel.startswith(tuple(kernels))]
    if not chosen:
        names = sorted({one.kernel for one in every})
        raise NotOffered(f"no kernel with tiles is named like {', '.join(kernels)}; there are: {', '.join(names)}")
    return chosen


def tuned(arch: Arch, every: Sequence[Subject], path: Path, timer: Timer, *, tries: int) -> Iterator[Row]:
    """Tune the entries of the subjects, each on top of those before it; a tile that is faster is in the file before its row is given."""
    tiles = Tiles.of(arch, path)
    for kernel, size in dict.fromkeys((one.kernel, one.size) for one in every):
        own = [one for one in every if (one.kernel, one.size) == (kernel, size)]
        judge = Judge(arch, tiles, own, timer)
        before = tiles.find(kernel, None if size == "*" else int(size))
        found = climb(kernel, before, judge.cost, tries=tries)
        share = _confirmed(judge, before, found.tile) if found.tile != before else 1.0
        if share < 1 - GAIN:
            tiles = tiles.replaced(kernel, size, found.tile)
            write(arch.name, tiles, path)
        after = tiles.find(kernel, None if size == "*" else int(size))
        yield {
            "kernel": kernel,
            "size": size,
            "before": _told(before),
            "after": _told(after),
            "speedup": round(1 / share, 3) if after != before else 1.0,
            "tried": len(found.tried),
            "refused": judge.why,
            "us": {one.name: round(1e6 * took, 2) for one, took in zip(own, judge.own, strict=True)},
        }


def _confirmed(judge: Judge, before: Tile, fastest: Tile) -> float:
    """What the fastest takes of what the table's own takes, in turns: the fastest of many is in part the luckiest."""
    shares = []
    for _ in range(_ROUNDS):
        own, other = judge.cost(before), judge.cost(fastest)
        if own is None or other is None:
            return 1.0
        shares.append(other / own)
    return median(shares)


def _told(tile: Tile) -> Row:
    return {**tile.blocks, "warps": tile.warps, "stages": tile.stages}


def line(row: Row) -> str:
    """For people."""
    name = f"{row['kernel']} {row['size']}: {row['tried']} tried"
    refused = ", ".join(f"{count} refused ({why})" for why, count in row["refused"].items())
    what = (
        "kept"
        if row["before"] == row["after"]
        else f"{row['before']} -> {row['after']}, {row['speedup']} times as fast"
    )
    return f"{name}, {refused + ', ' if refused else ''}{what}"
