"""The packed linear map, tile by tile of rows, and its float32 variant for logits."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from kernels.linear.packed import CANONICAL, PackedLinear, multiply

_Multiply = Callable[[torch.Tensor], torch.Tensor]


def linear(x: torch.Tensor, w: PackedLinear) -> torch.Tensor:
    """x [rows, k] of any float dtype -> [rows, n] in the weight's dtype (float32 accumulation)."""
    return _tiled(x.to(w.dtype), w, lambda tile: multiply(tile, w.weight, w.bias, w.blocked))


def linear_float32(x: torch.Tensor, w: PackedLinear) -> torch.Tensor:
    """x [rows, k] -> [rows, n] float32, without rounding sums to a half-precision weight's dtype.

    The library rounds its float32 sums to the weight's dtype. A second pass adds -y to the same sums before they are
    rounded, which gives what the first rounding lost: y + r carries twice the digits. That costs less than reading a
    float32 copy of the weight.
    """
    x = x.to(w.dtype)
    if w.dtype == torch.float32:
        return linear(x, w)
    if not w.blocked:
        return _tiled(x, w, lambda tile: F.linear(tile.float(), w.weight.float(), _float(w.bias)))
    return _tiled(x, w, lambda tile: _twice(tile, w))


def _twice(x: torch.Tensor, w: PackedLinear) -> torch.Tensor:
    minus = multiply(x, w.weight, w.bias, w.blocked).neg_()
    rest = torch.ops.mkldnn._linear_pointwise.binary(x, minus, w.weight, w.bias, "add")
    return rest.float().sub_(minus)  # type: ignore[no-any-return]


def _float(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.float()


def _tiled(x: torch.Tensor, w: PackedLinear, run: _Multiply) -> torch.Tensor:
    pieces = [_padded(x[start : start + count], height, run) for start, count, height in _cover(x.shape[0], w.tiles)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces) if pieces else run(x)


def _padded(x: torch.Tensor, height: int, run: _Multiply) -> torch.Tensor:
    rows = x.shape[0]
    if rows == height:
        return run(x.contiguous())
    return run(F.pad(x, (0, 0, 0, height - rows)))[:rows]


def _cover(rows: int, tiles: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(first row, rows, tile height): the largest tiles that are full, then the smallest that holds the rest."""
    start = 0
    while start < rows:
        rest = rows - start
        full = (
            [t for t in tiles if CANONICAL <= t <= rest]
            or [t for t in tiles if t >= rest][:1]
            or [tiles[-1] if tiles else rest]
        )
        height = full[-1]
        yield start, min(rest, height), height
        start += height
