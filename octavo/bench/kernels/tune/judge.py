"""What a tile is worth: it compiles, does not spill, gives what the table's own tile gives, and takes so long."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.errors import TritonError

from kernels.gpu.arch import Arch
from kernels.gpu.launch import Grid, Launcher
from kernels.gpu.tiles import Tile, Tiles

_CLOSE = 0.02  # of the largest value: other sums in half precision, and no more

Run = Callable[[], torch.Tensor]
Timer = Callable[[Run], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Something that is launched with one entry of the table. `make` lays out equal inputs whenever it is called, and gives what launches.
    `exact`: another tile must give the same bits.
    """

    kernel: str
    size: str
    name: str
    make: Callable[[Launcher], Run]
    fused: bool = True
    exact: bool = False


class Refused(Exception):
    """A tile that cannot be used, and why."""


class Judge:
    """Holds tiles of one entry of the table against its own, over all of the entry's subjects."""

    def __init__(self, arch: Arch, tiles: Tiles, subjects: Sequence[Subject], timer: Timer):
        self._arch, self._tiles, self._subjects, self._timer = arch, tiles, subjects, timer
        self._kernel, self._size = subjects[0].kernel, subjects[0].size
        self.why: dict[str, int] = {}  # how often tiles were refused, by reason
        runs = [self._run(subject, tiles) for subject in subjects]
        self._wanted = [run().clone() for run in runs]
        self.own = [timer(run) for run in runs]  # seconds of each subject

    def cost(self, tile: Tile) -> float | None:
        """The mean of what the subjects take in shares of what they take with the table's own tile; None where it cannot be used."""
        try:
            shares = [self._seconds(number, tile) / own for number, own in enumerate(self.own)]
        except Refused as reason:
            self.why[str(reason)] = self.why.get(str(reason), 0) + 1
            return None
        return math.exp(sum(map(math.log, shares)) / len(shares))

    def _seconds(self, number: int, tile: Tile) -> float:
        subject, spills = self._subjects[number], Spills()
        run = self._run(subject, self._tiles.replaced(self._kernel, self._size, tile), spills)
        try:
            got = run()
        except (TritonError, RuntimeError) as error:
            self._settle()
            raise Refused(type(error).__name__) from error
        if spills.seen:
            raise Refused("spills")
        if not agree(got, self._wanted[number], exact=subject.exact):
            raise Refused("gives something else")
        return self._timer(run)

    def _run(self, subject: Subject, tiles: Tiles, start: "Spills | None" = None) -> Run:
        return subject.make(Launcher(self._arch, tiles, exact=not subject.fused, start=start or Spills()))

    def _settle(self) -> None:
        """Raises where what failed has broken the device's context: nothing would be right after that."""
        if self._arch.device.type == "cuda":
            torch.cuda.synchronize(self._arch.device)


class Spills:
    """A Launcher's `start` that notes whether a kernel keeps registers in memory."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, kernel: Any, grid: Grid, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Launch."""
        made = kernel[grid](*args, **options)
        self.seen = self.seen or bool(getattr(made, "n_spills", 0))


def agree(got: torch.Tensor, want: torch.Tensor, *, exact: bool) -> bool:
    """Whether two tiles' results are the same but for the order of sums. -inf is where it was."""
    if exact or not got.is_floating_point():
        return torch.equal(got, want)
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite):
        return False
    off = (got - want).double()[finite].abs()
    return bool((off <= _CLOSE * want.double()[finite].abs().amax()).all()) if len(off) else True
