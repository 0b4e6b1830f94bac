# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Embedding lookup, of a whole table or of the part that a tensor-parallel rank holds."""

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, up
from kernels.weights import Embedding


@triton.jit
def embed_kernel(tokens_ptr, table_ptr, out_ptr, first, rows, s_table, s_out, width, scale, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(tokens_ptr + token).to(tl.int64) - first
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = (row >= 0) & (row < rows)
    inside = at < width
    value = tl.load(table_ptr + row * s_table + at, mask=inside & held, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * s_out + at, value * scale, mask=inside)


def embed(launch: Launcher, tokens: torch.Tensor, weights: Embedding, first: int = 0) -> torch.Tensor:
    """tokens int64 [tokens] -> float32 [tokens, hidden]. The table's rows are tokens `first` and so on; tokens outside
    give zeros, so that the ranks' results add up.
    """
    table = weights.table
    out = torch.empty(len(tokens), table.shape[1], dtype=torch.float32, device=table.device)
    tile = launch.tile("embed")
    launch.run(
        embed_kernel, (len(tokens), up(table.shape[1], tile["BLOCK"])),
        tokens, table, out, first, len(table), table.stride(0), out.stride(0), table.shape[1], weights.scale, tile=tile,
    )  # fmt: skip
    return out
