"""The paged KV cache."""

from kernels.kv.pool import BLOCK, KVPool, block_bytes

__all__ = ["BLOCK", "KVPool", "block_bytes"]
