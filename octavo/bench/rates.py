"""What this machine does at its best, measured in the process and on the threads that the figures beside it come from.

Machines drift, and neighbours come and go: limits from another hour say nothing about a figure.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.backend import Backend
from kernels.weights import Head, Norm
from octavo.bench.bound import Limits

READ_BYTES = 512 << 20  # far beyond the caches
LARGE = 2048
ROWS, WIDE, NARROW = 64, 1536, 576  # a decode batch, and a projection that stays in the caches
_REPEATS = 5
_SECONDS = 0.15  # of each repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Units a second: the median and the least of some repeats."""

    median: float
    least: float


def timed(call: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Seconds of one call, over as many as fit into `seconds`, after one that does not count."""
    call()
    began, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds or not count:
        call()
        count += 1
    return spent / count


def _rate(units: float, call: Callable[[], object], repeats: int, seconds: float) -> Rate:
    rates = [units / timed(call, seconds) for _ in range(repeats)]
    return Rate(median=statistics.median(rates), least=min(rates))


def _plain(rows: int, n: int, k: int, dtype: torch.dtype) -> Callable[[], object]:
    x, weight = torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)
    return lambda: F.linear(x, weight)


def _onednn(dtype: torch.dtype) -> Callable[[], object] | None:
    """The library's product with a weight in its own layout; None where it has none for this dtype."""
    x, weight = torch.randn(ROWS, NARROW).to(dtype), torch.randn(WIDE, NARROW).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _ours(ops: Backend, dtype: torch.dtype) -> Callable[[], object]:
    """The backend's own product, with the norm before it."""
    proj = ops.pack((torch.randn(WIDE, NARROW) / 24).to(dtype), bias=None, invariant=True)
    head = Head(norm=Norm(weight=torch.ones(NARROW), eps=1e-5), proj=proj)
    x, rows = torch.randn(ROWS, NARROW), torch.arange(ROWS)
    return lambda: ops.logits(x, rows, head)


def _read(size: int) -> Callable[[], object]:
    content = torch.ones(size // 4)
    return content.sum


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    dtype: torch.dtype,
    ops: Backend,
    threads: int,
    *,
    repeats: int = _REPEATS,
    seconds: float = _SECONDS,
    read_bytes: int = READ_BYTES,
    large: int = LARGE,
) -> dict[str, Rate]:
    """`read` in bytes a second, the rest in FLOP a second: `large` (square, plain), and of 64 rows `plain`, `onednn` and `backend`.

    The last two have packed weights; `onednn` is missing where the library packs none of this dtype. `threads` are the library's.
    """
    with _threads(threads), torch.inference_mode():
        calls = _calls(dtype, ops, read_bytes, large)
        return {name: _rate(units, call, repeats, seconds) for name, (units, call) in calls.items() if call is not None}


def _calls(
    dtype: torch.dtype, ops: Backend, read_bytes: int, large: int
) -> dict[str, tuple[float, Callable[[], object] | None]]:
    flop = 2.0 * ROWS * WIDE * NARROW
    return {
        "read": (read_bytes, _read(read_bytes)),
        "large": (2.0 * large**3, _plain(large, large, large, dtype)),
        "plain": (flop, _plain(ROWS, WIDE, NARROW, dtype)),
        "onednn": (flop, _onednn(dtype)),
        "backend": (flop, _ours(ops, dtype)),
    }


def read(threads: int, *, repeats: int = _REPEATS, seconds: float = _SECONDS, size: int = READ_BYTES) -> Rate:
    """Bytes a second that memory gives, alone."""
    with _threads(threads), torch.inference_mode():
        return _rate(size, _read(size), repeats, seconds)


def limits(rates: dict[str, Rate]) -> Limits:
    """The medians. The packed rate is the best one seen, ours or the library's: a slow kernel of ours must not lower the bar."""
    packed = max(rates[name].median for name in ("plain", "onednn", "backend") if name in rates)
    return Limits(read=rates["read"].median, large=rates["large"].median, packed=packed)


def told(rates: dict[str, Rate]) -> dict[str, Any]:
    """For a report: GB/s for `read`, GFLOP/s for the rest."""
    return {
        name: {"median": round(rate.median / 1e9, 2), "least": round(rate.least / 1e9, 2)}
        for name, rate in rates.items()
    }
