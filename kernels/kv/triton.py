# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""The GPU backend's KV pool and the kernel that writes to it.

Layout: [layers, 2 (K, V), blocks, kv_heads, block size, head_dim], so that a KV head's part of a block is one piece of
memory. A *place* is block * block size + offset; -1 is no place. Unwritten places may hold anything: attention reads no
position beyond a sequence's end.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, power_of_two
from kernels.gpu.tiles import Tile
from kernels.kv.pool import BLOCK, Blocks, block_bytes

__all__ = ["GpuKVPool", "block_bytes", "kv_base", "write"]


@triton.jit
def kv_base(place, head, s_block, s_head, s_place, BLOCK_SIZE: tl.constexpr):
    """The offset of a place's values of one head, int64, from the layer's start."""
    return (place // BLOCK_SIZE).to(tl.int64) * s_block + head * s_head + (place % BLOCK_SIZE) * s_place


@triton.jit
def write_kernel(
    k_ptr, v_ptr, places_ptr, key_ptr, value_ptr, s_k, s_k_head, s_v, s_v_head, s_block, s_head, s_place, heads,
    DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places_ptr + token)
    head = tl.arange(0, BLOCK_H)[:, None]
    at = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < heads) & (at < DIM) & (place >= 0)
    to = kv_base(place, head, s_block, s_head, s_place, BLOCK_SIZE) + at
    k = tl.load(k_ptr + token * s_k + head * s_k_head + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + token * s_v + head * s_v_head + at, mask=inside, other=0.0)
    tl.store(key_ptr + to, k.to(tl.float32).to(key_ptr.dtype.element_ty), mask=inside)
    tl.store(value_ptr + to, v.to(tl.float32).to(value_ptr.dtype.element_ty), mask=inside)


class GpuKVPool:
    """The cache on a GPU, opaque outside the kernels. `data` as in the module's text."""

    def __init__(self, data: torch.Tensor):
        self._data = data
        self.layers, _, self.blocks, self.kv_heads, self.block_size, self.head_dim = data.shape

    @classmethod
    def allocate(
        cls, *, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype, device: torch.device,
        block_size: int = BLOCK,
    ) -> "GpuKVPool":  # fmt: skip
        """A pool of `blocks` blocks, not initialised."""
        shape = (layers, 2, blocks, kv_heads, block_size, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device))

    @property
    def dtype(self) -> torch.dtype:
        """What K and V are kept as."""
        return self._data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the whole cache."""
        return self._data.nbytes

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, [blocks, kv_heads, block size, head_dim] each, of equal strides."""
        return self._data[number, 0], self._data[number, 1]

    @torch.inference_mode()
    def copy_blocks(self, sources: Blocks, targets: Blocks) -> None:
        """Copy whole blocks in every layer, all read before any is written. Tensors are taken as they are."""
        self._data.index_copy_(2, self._ids(targets), self._data.index_select(2, self._ids(sources)))

    @torch.inference_mode()
    def export(self, blocks: Sequence[int]) -> torch.Tensor:
        """The blocks' content, opaque, one block after another on the first axis; `import_` of a pool of equal shape
        takes it.
        """
        return self._data.index_select(2, self._ids(blocks)).movedim(2, 0).contiguous()

    @torch.inference_mode()
    def import_(self, blocks: Sequence[int], content: torch.Tensor) -> None:
        """Fill the blocks with what `export` gave, wherever that lies."""
        self._data.index_copy_(2, self._ids(blocks), content.to(self._data.device).movedim(0, 2))

    @torch.inference_mode()
    def fill(self, value: float) -> None:
        """Set every place (tests fill it with NaN)."""
        self._data.fill_(value)

    def _ids(self, blocks: Blocks) -> torch.Tensor:
        if isinstance(blocks, torch.Tensor):
            return blocks  # on the device already: to look at it would wait for the device
        if any(not 0 <= block < self.blocks for block in blocks):
            raise IndexError(f"block ids {sorted(blocks)} are not all in 0 .. {self.blocks - 1}")
        return torch.tensor(blocks, dtype=torch.int64, device=self._data.device)


def write(
    launch: Launcher, pool: GpuKVPool, layer: int, places: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Store k and v [tokens, kv_heads, head_dim], of any strides with dense heads, at `places` int32 [tokens]."""
    key, value = pool.layer(layer)
    heads = power_of_two(pool.kv_heads)
    dim = power_of_two(pool.head_dim)
    tile = Tile(blocks={"BLOCK_H": heads, "BLOCK_D": dim}, warps=max(1, min(8, heads * dim // 256)), stages=1)
    launch.run(
        write_kernel, (len(k),),
        k, v, places, key, value, k.stride(0), k.stride(1), v.stride(0), v.stride(1), *key.stride()[:3], pool.kv_heads,
        tile=tile, DIM=pool.head_dim, BLOCK_SIZE=pool.block_size,
    )  # fmt: skip
