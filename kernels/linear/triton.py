# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""y = x W^T + b on a GPU: the vendor's library, or a kernel of our own whose sums over K have one order for every number
of rows.

The library picks its kernel by the number of rows, and with it the order of sums. Ours adds K in steps of one BLOCK_K
with one matrix instruction; other tiles change which program computes a result, not how.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, up
from kernels.linear.compiled import Compiled

_FEW = 64  # rows up to which the tile for few rows is used
_GROUP = 8  # row blocks that share a column block's weights in the cache


@triton.jit(do_not_specialize=["rows"])
def matmul_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, rows, n, k, s_x, s_w, s_out, BIAS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    across = tl.cdiv(rows, BLOCK_M)
    group = program // (GROUP * tl.cdiv(n, BLOCK_N))
    first = group * GROUP
    size = tl.minimum(across - first, GROUP)
    inside = program % (GROUP * tl.cdiv(n, BLOCK_N))
    m = (first + inside % size).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (inside // size).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        held = start + at < k
        x = tl.load(
            x_ptr + m[:, None] * s_x + (start + at)[None, :], mask=(m < rows)[:, None] & held[None, :], other=0.0
        )
        w = tl.load(
            w_ptr + columns[:, None] * s_w + (start + at)[None, :], mask=(columns < n)[:, None] & held[None, :], other=0.0
        )  # fmt: skip
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    to = m[:, None] * s_out + columns[None, :]
    tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=(m < rows)[:, None] & (columns < n)[None, :])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GpuLinear:
    """A weight [n, k] on the GPU. `invariant`: a row's result does not depend on the other rows' number. `compiled` makes the others'
    products, where it is there.
    """

    n: int
    k: int
    weight: torch.Tensor
    bias: torch.Tensor | None
    invariant: bool
    compiled: Compiled | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What x is multiplied in."""
        return self.weight.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes


def pack(
    launch: Launcher, weight: torch.Tensor, quantisation: str | None, bias: torch.Tensor | None, *, invariant: bool,
    compiled: Compiled | None = None,
) -> GpuLinear:  # fmt: skip
    """See kernels.linear.pack."""
    if quantisation is not None:
        raise ValueError(f"quantisation {quantisation!r} is not served; served: none")
    held = weight.contiguous().to(launch.device)
    added = None if bias is None else bias.to(launch.device, weight.dtype).contiguous()
    if compiled is not None:
        held, added = compiled.fixed(held), None if added is None else compiled.fixed(added)
    return GpuLinear(
        n=weight.shape[0], k=weight.shape[1], weight=held, bias=added, invariant=invariant, compiled=compiled
    )


def linear(launch: Launcher, x: torch.Tensor, w: GpuLinear) -> torch.Tensor:
    """x [rows, k] in the weight's dtype -> [rows, n] of the same dtype (float32 accumulation)."""
    if w.invariant:
        return matmul(launch, x, w, w.dtype)
    return F.linear(x, w.weight, w.bias) if w.compiled is None else w.compiled.linear(x, w.weight, w.bias)


def linear_float32(launch: Launcher, x: torch.Tensor, w: GpuLinear) -> torch.Tensor:
    """x [rows, k] in the weight's dtype -> [rows, n] float32, sums not rounded to a half-precision weight's dtype."""
    if w.dtype == torch.float32 or w.invariant or not x.is_cuda or torch.version.hip:
        return matmul(launch, x, w, torch.float32)
    y = torch.mm(x, w.weight.T, out_dtype=torch.float32)
    return y if w.bias is None else y.add_(w.bias)


def matmul(launch: Launcher, x: torch.Tensor, w: GpuLinear, dtype: torch.dtype) -> torch.Tensor:
    """x [rows, k] in the weight's dtype -> [rows, n] in `dtype`, with the kernel."""
    rows = len(x)
    out = torch.empty(rows, w.n, dtype=dtype, device=x.device)
    kind = "wide" if w.dtype == torch.float32 else "few" if rows <= _FEW else "many"
    tile = launch.tile(f"matmul.{kind}")
    launch.run(
        matmul_kernel, (up(rows, tile["BLOCK_M"]) * up(w.n, tile["BLOCK_N"]),),
        x, w.weight, w.weight if w.bias is None else w.bias, out, rows, w.n, w.k, x.stride(0), w.weight.stride(0),
        out.stride(0), tile=tile, BIAS=w.bias is not None, GROUP=_GROUP,
    )  # fmt: skip
    return out
