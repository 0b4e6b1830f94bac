"""The CPU backend's KV pool: blocks laid out as the right factors of attention's products (see cpu.h beside this)."""

from collections.abc import Sequence

import torch

from kernels.cpu.abi import DTYPES, PoolStruct
from kernels.cpu.engine import Engine
from kernels.kv.pages import PagesAhead
from kernels.kv.pool import BLOCK

_ALIGN = 32  # head dimensions are padded to it


def block_bytes(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return layers * kv_heads * 2 * BLOCK * (-(-head_dim // _ALIGN) * _ALIGN) * dtype.itemsize


class CpuKVPool:
    """The cache, opaque outside the kernels. Used by one thread at a time. Places that were never written read as zero:
    the first write to a block clears the rest of it.
    """

    def __init__(self, engine: Engine, *, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype):
        one = block_bytes(layers=1, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        self._bytes = engine.memory(layers * blocks * one)
        self._data = self._bytes.view(layers, blocks, one)
        self._dtype = dtype
        self.blocks = blocks
        self.kv_heads = kv_heads
        memory, touch, stride = self._bytes, engine.touch, blocks * one

        def touched(first: int, last: int) -> None:
            for layer in range(layers):
                touch(memory, layer * stride + first * one, (last - first) * one)

        self.pages = PagesAhead(touched, blocks=blocks, block_bytes=layers * one)
        self.struct = PoolStruct(self._bytes.data_ptr(), layers, kv_heads, head_dim, blocks, DTYPES[dtype])

    @torch.inference_mode()
    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks in every layer, all read before any is written."""
        self._data.index_copy_(1, self._ids(targets), self._data.index_select(1, self._ids(sources)))

    @torch.inference_mode()
    def export(self, blocks: Sequence[int]) -> torch.Tensor:
        """The blocks' content, opaque, one block after another on the first axis; `import_` of a pool of equal shape
        takes it.
        """
        return self._data.index_select(1, self._ids(blocks)).movedim(1, 0).contiguous()

    @torch.inference_mode()
    def import_(self, blocks: Sequence[int], content: torch.Tensor) -> None:
        """Fill the blocks with what `export` gave."""
        self._data.index_copy_(1, self._ids(blocks), content.movedim(0, 1))

    @torch.inference_mode()
    def fill(self, value: float) -> None:
        """Set every place (tests fill it with NaN)."""
        self._bytes.view(self._dtype).fill_(value)

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor(blocks, dtype=torch.int64)
        if len(blocks) and not 0 <= int(ids.min()) <= int(ids.max()) < self.blocks:
            raise IndexError(f"block ids {sorted(blocks)} are not all in 0 .. {self.blocks - 1}")
        return ids
