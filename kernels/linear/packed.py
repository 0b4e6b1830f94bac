"""Packing a weight for the matrix multiplication that this machine does best, and the row tiles that keep it exact.

A GEMM library may sum over K in another order for another number of rows, so that one request's bits would depend on
its batch. We therefore multiply a fixed number of rows at a time, padding the last tile with zeros: every row then
sees the same kernel. Other tile heights are used only where a probe with the weight's own shape shows that they give
the same bits as the canonical one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

CANONICAL = 64  # rows; decode batches fit it, and AMX tiles are full
_OTHERS = (16, 256, 512)  # fewer rows for small batches, more for prefill


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedLinear:
    """A weight [n, k] that only the kernels look into. `tiles` are the allowed numbers of rows, ascending; empty = any
    number.
    """

    n: int
    k: int
    dtype: torch.dtype
    weight: torch.Tensor
    bias: torch.Tensor | None
    blocked: bool  # oneDNN's own layout instead of rows
    tiles: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the weight without padding that the layout may add."""
        return self.n * self.k * self.dtype.itemsize


def pack(
    weight: torch.Tensor,
    quantisation: str | None = None,
    bias: torch.Tensor | None = None,
    *,
    invariant: bool = True,
) -> PackedLinear:
    """Pack `weight` [n, k], float32, bfloat16 or float16. `invariant`: a row's result does not depend on the other
    rows' number.

    Raises ValueError for a quantisation that no kernel serves.
    """
    if quantisation is not None:
        raise ValueError(f"quantisation {quantisation!r} is not served; served: none")
    n, k = weight.shape
    blocked = _onednn_serves(weight.dtype)
    tiles = _tiles(n, k, weight.dtype, blocked, torch.get_num_threads()) if invariant else ()
    return PackedLinear(
        n=n,
        k=k,
        dtype=weight.dtype,
        weight=_block(weight) if blocked else weight.contiguous(),
        bias=None if bias is None else bias.to(weight.dtype).contiguous(),
        blocked=blocked,
        tiles=tiles,
    )


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, blocked: bool) -> torch.Tensor:
    """x [rows, k] times the packed weight, in one call and in x's dtype."""
    if blocked:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def _onednn_serves(dtype: torch.dtype) -> bool:
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def _block(weight: torch.Tensor) -> torch.Tensor:
    """oneDNN's layout for about CANONICAL rows; it serves every number of rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), CANONICAL)  # type: ignore[no-any-return]


@cache
def _tiles(n: int, k: int, dtype: torch.dtype, blocked: bool, _threads: int) -> tuple[int, ...]:
    """Tile heights that give equal bits for a weight of this shape; pure in its arguments on one machine (`_threads` is
    the current number).
    """
    weight, x = _cancelling(n, max(CANONICAL, *_OTHERS), k, dtype)
    packed = _block(weight) if blocked else weight

    def run(rows: torch.Tensor) -> torch.Tensor:
        return multiply(rows, packed, None, blocked)

    if not _uniform(run, x, CANONICAL):
        return (1,)
    expected = torch.cat([run(x[start : start + CANONICAL]) for start in range(0, x.shape[0], CANONICAL)])
    equal = [t for t in _OTHERS if _uniform(run, x, t) and torch.equal(run(x[:t]), expected[:t])]
    return tuple(sorted([CANONICAL, *equal]))


def _cancelling(n: int, rows: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and inputs whose terms cancel in pairs that lie anywhere along K and differ much in size, so that results
    are what rounding left: another order of sums shows in nearly every one, however coarse the dtype.
    """
    draw = torch.Generator().manual_seed(n * 1_000_003 + k)
    half, order = k // 2, torch.randperm(k, generator=draw)
    sizes = torch.exp2(torch.randint(-4, 5, (k - half,), generator=draw).float())
    weight = torch.randn(n, k - half, generator=draw)
    x = torch.randn(rows, k - half, generator=draw) * sizes
    x[:, half:] = 0  # of an odd k, the term without a partner
    return (
        torch.cat((weight, weight[:, :half]), 1)[:, order].to(dtype).contiguous(),
        torch.cat((x, -x[:, :half]), 1)[:, order].to(dtype).contiguous(),
    )


def _uniform(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rows: int) -> bool:
    """Whether a row's result is the same at every place of a tile of `rows`."""
    y = run(x[:1].expand(rows, -1).contiguous())
    return bool((y == y[:1]).all())
