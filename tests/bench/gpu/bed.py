"""Where everything is run: the device, how time is taken on it, and the rates that figures are held against."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from kernels.gpu.arch import Arch
from kernels.gpu.launch import Launcher
from kernels.gpu.timing import seconds

Tensor = torch.Tensor
Row = dict[str, Any]
Rows = list[Row]
_Size = TypeVar("_Size")

TOY_VOCABULARY = 1500
VOCABULARY = 128_256
# Relative to the largest value: half a unit in the last place where results are rounded, and some for another order of sums.
_TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 5e-6}


@dataclass(frozen=True, kw_only=True)
class Bed:
    """`free` launches as a worker does by default, `fixed` as with --deterministic. `dry`: toy sizes in the interpreter, whose times mean
    nothing.
    """

    free: Launcher
    fixed: Launcher
    dry: bool
    _rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def present(cls, *, dry: bool) -> "Bed":
        """On the GPU that is there."""
        return cls(free=Launcher.present(), fixed=Launcher.present(exact=True), dry=dry)

    @property
    def arch(self) -> Arch:
        """The GPU."""
        return self.free.arch

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""
        return self.arch.device

    def launch(self, *, fixed: bool) -> Launcher:
        """For sums that are free to be fused and split, or not."""
        return self.fixed if fixed else self.free

    def size(self, toy: _Size, real: _Size) -> _Size:
        """The one that is run here."""
        return toy if self.dry else real

    def drawn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
        """Normal values, drawn in place: large ones must fit beside nothing."""
        draw = torch.Generator(self.device).manual_seed(seed + sum(shape))
        return torch.empty(*shape, device=self.device, dtype=dtype).normal_(generator=draw)

    def wait(self) -> None:
        """Until the device is idle."""
        if not self.dry:
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object]) -> float:
        """The median of one run's time, with a cold L2, without what launching costs the host; interpreted, one run."""
        if not self.dry:
            return seconds(run)
        run()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def copy_rate(self) -> float:
        """Bytes a second that a copy reads and writes: the ceiling of what only moves memory."""
        return self._rate("copy", self._measured_copy)

    def product_rate(self) -> float:
        """Operations a second of a large product in bfloat16."""
        return self._rate("product", self._measured_product)

    def free_bytes(self) -> int:
        """What a tensor may take."""
        self.forget()
        return 1 << 26 if self.dry else torch.cuda.mem_get_info(self.device)[0]

    def forget(self) -> None:
        """Give memory back that nothing holds any more."""
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

    def rates(self) -> Row:
        """The ceilings that were measured in this run."""
        return dict(self._rates)

    def _rate(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self._rates:
            self._rates[name] = measure()
        return self._rates[name]

    def _measured_copy(self) -> float:
        x = torch.zeros(self.size(1 << 12, 1 << 30), dtype=torch.int8, device=self.device)
        y = torch.empty_like(x)
        return 2 * x.numel() / self.seconds(lambda: y.copy_(x))

    def _measured_product(self) -> float:
        n = self.size(64, 8192)
        x, y = self.drawn(n, n), self.drawn(n, n, seed=1)
        return 2 * n**3 / self.seconds(lambda: x @ y)


def close(kernel: str, case: str, got: Tensor, want: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Row:
    """Whether all was written, and nothing is off by more than the dtype's rounding, wherever the two lie."""
    found, wanted = got.double().cpu(), want.double().cpu()
    size = max(float(wanted.abs().max()), 1e-30)
    off = float((found - wanted).abs().max()) / size if found.shape == wanted.shape else float("inf")
    limit = factor * _TOLERANCE[dtype]
    return {"kernel": kernel, "case": case, "off": off, "limit": limit, "equal": off <= limit}  # NaN is not


def same(kernel: str, case: str, got: Tensor, want: Tensor) -> Row:
    """Whether the two are equal, bit for bit but for the sign of zeros."""
    equal = torch.equal(got.cpu(), want.cpu())
    return {"kernel": kernel, "case": case, "off": 0.0 if equal else None, "limit": 0.0, "equal": equal}


def apart(x: Tensor) -> Tensor:
    """The same rows with NaN between them."""
    wide = torch.full((x.shape[0], x.shape[1] + 8), torch.nan, dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]
