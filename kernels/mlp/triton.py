# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Gated activations: act(gate) * up, in float32."""

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, up
from kernels.weights import Activation

_TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)


@triton.jit
def gated_kernel(x_ptr, out_ptr, s_x, s_out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(x_ptr + row * s_x + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + row * s_x + width + at, mask=inside, other=0.0).to(tl.float32)
    below = gate
    if GELU:
        below = _TWICE_ROOT * gate * (1.0 + 0.044715 * gate * gate)
    acted = gate / (1.0 + tl.exp(-below))
    tl.store(out_ptr + row * s_out + at, (acted * other).to(out_ptr.dtype.element_ty), mask=inside)


def gated(launch: Launcher, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """x [tokens, 2 * width], gate before up -> [tokens, width] of the same dtype."""
    width = x.shape[1] // 2
    out = torch.empty(len(x), width, dtype=x.dtype, device=x.device)
    tile = launch.tile("gated")
    grid = (len(x), up(width, tile["BLOCK"]))
    launch.run(gated_kernel, grid, x, out, x.stride(0), out.stride(0), width, tile=tile, GELU=activation == "gelu_tanh")
    return out
