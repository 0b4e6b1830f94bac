"""Keys and values of all layers in blocks of 16 positions, addressed by *place*: block * 16 + offset.

Layout: [layers, 2 (K, V), kv_heads, (blocks + 1) * 16, head_dim]. The block after the last is null: it is zero, nobody
writes to it, and positions that a query must not see are read from it, so that what lies in unwritten places (NaN,
even) never reaches a result.
"""

from collections.abc import Sequence

import torch

BLOCK = 16  # positions
Blocks = Sequence[int] | torch.Tensor  # numbers of blocks; a tensor is int64 on the pool's device


def block_bytes(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return layers * 2 * kv_heads * BLOCK * head_dim * dtype.itemsize


class KVPool:
    """The cache. Used by one thread at a time. What `read` returns is valid until the next `read`."""

    def __init__(self, data: torch.Tensor):
        self._data = data
        self._layers, _, self._kv_heads, places, self._head_dim = data.shape
        self.blocks = places // BLOCK - 1
        self._heads = torch.arange(2 * self._kv_heads, device=data.device).view(2, 1, self._kv_heads, 1) * places
        self._raw = torch.empty(0, dtype=data.dtype, device=data.device)
        self._wide = torch.empty(0, dtype=torch.float32, device=data.device)

    @classmethod
    def allocate(
        cls, *, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype, device: str = "cpu"
    ) -> "KVPool":
        """A pool of `blocks` blocks, not initialised: on CPU the system gives memory when a place is first written."""
        shape = (layers, 2, kv_heads, (blocks + 1) * BLOCK, head_dim)
        data = torch.empty(shape, dtype=dtype, device=device)
        data[:, :, :, blocks * BLOCK :].zero_()
        return cls(data)

    @property
    def null(self) -> int:
        """A place that reads as zero."""
        return self.blocks * BLOCK

    @property
    def kv_heads(self) -> int:
        """KV heads a layer."""
        return self._kv_heads

    def index(self, places: torch.Tensor) -> torch.Tensor:
        """Rows for `write` and `read`, from places int64 [n, width]: flat over [2, n, kv_heads, width]."""
        return (self._heads + places[None, :, None, :]).flatten()

    def write(self, layer: int, index: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v [tokens, kv_heads, head_dim] at the rows of `index(places[:, None])`, places int64 [tokens],
        all distinct.
        """
        values = torch.stack((k.to(self._data.dtype), v.to(self._data.dtype))).view(-1, self._head_dim)
        self._rows(layer).index_copy_(0, index, values)

    def read(self, layer: int, index: torch.Tensor, width: int) -> torch.Tensor:
        """float32 [2 (K, V), n, kv_heads, width, head_dim] from the rows of `index(places [n, width])`."""
        count = index.numel() * self._head_dim
        self._wide = _grown(self._wide, count)
        wide = self._wide[:count].view(-1, self._head_dim)
        if self._data.dtype == torch.float32:
            torch.index_select(self._rows(layer), 0, index, out=wide)
        else:
            self._raw = _grown(self._raw, count)
            raw = self._raw[:count].view(-1, self._head_dim)
            wide.copy_(torch.index_select(self._rows(layer), 0, index, out=raw))
        return wide.view(2, -1, self._kv_heads, width, self._head_dim)

    @torch.inference_mode()
    def copy_blocks(self, sources: Blocks, targets: Blocks) -> None:
        """Copy whole blocks in every layer, all read before any is written. Tensors are taken as they are."""
        self._blocked().index_copy_(3, self._ids(targets), self._blocked().index_select(3, self._ids(sources)))

    @torch.inference_mode()
    def export(self, blocks: Sequence[int]) -> torch.Tensor:
        """The blocks' content, opaque, one block after another on the first axis; `import_` of a pool of equal shape
        takes it.
        """
        return self._blocked().index_select(3, self._ids(blocks)).movedim(3, 0).contiguous()

    @torch.inference_mode()
    def import_(self, blocks: Sequence[int], content: torch.Tensor) -> None:
        """Fill the blocks with what `export` gave."""
        self._blocked().index_copy_(3, self._ids(blocks), content.movedim(0, 3).to(self._data.dtype))

    @torch.inference_mode()
    def fill(self, value: float) -> None:
        """Set every place but the null block (tests fill it with NaN)."""
        self._data[:, :, :, : self.null].fill_(value)

    def _rows(self, layer: int) -> torch.Tensor:
        return self._data[layer].view(-1, self._head_dim)

    def _blocked(self) -> torch.Tensor:
        return self._data.view(*self._data.shape[:3], self.blocks + 1, BLOCK, self._head_dim)

    def _ids(self, blocks: Blocks) -> torch.Tensor:
        if isinstance(blocks, torch.Tensor):
            return blocks  # on the device already: to look at it would wait for the device
        ids = torch.tensor(blocks, dtype=torch.int64, device=self._data.device)
        if len(blocks) and not 0 <= int(ids.min()) <= int(ids.max()) < self.blocks:
            raise IndexError(f"block ids {sorted(blocks)} are not all in 0 .. {self.blocks - 1}")
        return ids


def _grown(buffer: torch.Tensor, count: int) -> torch.Tensor:
    """`buffer`, or a larger one: fresh large tensors would fault in their pages at every read."""
    return buffer if buffer.numel() >= count else buffer.new_empty(count)
