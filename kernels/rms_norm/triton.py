# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Residual addition and RMSNorm in one pass over a row, with an optional norm of what is added (Gemma's)."""

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, power_of_two
from kernels.gpu.tiles import Tile
from kernels.weights import Norm


@triton.jit
def _normed(x, weight_ptr, at, inside, width, eps):
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps)) * weight


@triton.jit
def add_rms_norm_kernel(
    x_ptr, y_ptr, out_ptr, rows_ptr, after_ptr, norm_ptr, s_x, s_y, s_out, width, after_eps, norm_eps,
    ADD: tl.constexpr, AFTER: tl.constexpr, NORM: tl.constexpr, OUT: tl.constexpr, GATHER: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    source = row
    if GATHER:
        source = tl.load(rows_ptr + row).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + source * s_x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        y = tl.load(y_ptr + row * s_y + at, mask=inside, other=0.0).to(tl.float32)
        if AFTER:
            y = _normed(y, after_ptr, at, inside, width, after_eps)
        x += y
        tl.store(x_ptr + row * s_x + at, x, mask=inside)
    if OUT:
        if NORM:
            x = _normed(x, norm_ptr, at, inside, width, norm_eps)
        tl.store(out_ptr + row * s_out + at, x.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    launch: Launcher, x: torch.Tensor, norm: Norm | None, dtype: torch.dtype, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """x float32 [tokens, hidden], or its `rows` int64 [rows] alone -> normed (as it is where `norm` is None), in
    `dtype`.
    """
    out = torch.empty(len(x) if rows is None else len(rows), x.shape[1], dtype=dtype, device=x.device)
    _run(launch, x, None, None, norm, out, rows)
    return out


def add_rms_norm(
    launch: Launcher, x: torch.Tensor, y: torch.Tensor, after: Norm | None, norm: Norm | None, dtype: torch.dtype
) -> torch.Tensor:
    """x += after(y), x float32 [tokens, hidden] in place, y of the same shape; -> norm(x) in `dtype`."""
    out = torch.empty_like(x, dtype=dtype)
    _run(launch, x, y, after, norm, out, None)
    return out


def add(launch: Launcher, x: torch.Tensor, y: torch.Tensor, after: Norm | None) -> None:
    """x += after(y), in place."""
    _run(launch, x, y, after, None, None, None)


def _run(
    launch: Launcher, x: torch.Tensor, y: torch.Tensor | None, after: Norm | None, norm: Norm | None,
    out: torch.Tensor | None, rows: torch.Tensor | None,
) -> None:  # fmt: skip
    width = x.shape[1]
    block = power_of_two(width)
    tile = Tile(blocks={"BLOCK": block}, warps=_warps(launch, block), stages=1)
    launch.run(
        add_rms_norm_kernel, (len(x) if rows is None else len(rows),),
        x, x if y is None else y, x if out is None else out, x if rows is None else rows,
        x if after is None else after.weight, x if norm is None else norm.weight,
        x.stride(0), 0 if y is None else y.stride(0), 0 if out is None else out.stride(0), width,
        0.0 if after is None else after.eps, 0.0 if norm is None else norm.eps,
        tile=tile, ADD=y is not None, AFTER=after is not None, NORM=norm is not None, OUT=out is not None,
        GATHER=rows is not None,
    )  # fmt: skip


def _warps(launch: Launcher, block: int) -> int:
    """A row's values must stay in registers: so many warps, up to what the table allows."""
    tile = launch.tile("rms_norm")
    return min(tile["MOST_WARPS"], max(1, block // tile["PER_WARP"]))
