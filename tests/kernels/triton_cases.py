"""What the tests of Triton kernels share: the interpreter's launcher, tolerances, a cache with random content."""

from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from kernels.attention.spec import AttentionSpec
from kernels.gpu.launch import Launcher
from kernels.kv import BLOCK, KVPool
from kernels.kv.triton import GpuKVPool
from tests.kernels import triton_by_value

triton_by_value.install()

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Relative to the largest value: half a unit in the last place where results are rounded, and some for another order of sums.
TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 5e-6}


def launcher(*, exact: bool = False) -> Launcher:
    return Launcher.present(exact=exact)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Everything was written, and nothing is off by more than the dtype's rounding."""
    got, want = got.double(), want.double()
    assert torch.isfinite(got).all()
    error, size = (got - want).abs().max(), want.abs().max()
    assert error <= factor * TOLERANCE[dtype] * size, f"off by {error:.3g} where values reach {size:.3g}"


@dataclass
class Caches:
    """The same K and V in the GPU's pool and in the reference's, each with shuffled blocks, NaN wherever nothing was written."""

    pool: GpuKVPool
    tables: torch.Tensor
    reference: KVPool
    reference_tables: torch.Tensor


def caches(lengths: list[int], spec: AttentionSpec, dtype: torch.dtype, block_size: int) -> Caches:
    shape = {"layers": 2, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "dtype": dtype}
    draw = torch.Generator().manual_seed(spec.head_dim)
    width, own = -(-max(lengths) // BLOCK), -(-max(lengths) // block_size)
    pool = GpuKVPool.allocate(**shape, blocks=own * len(lengths), device=torch.device("cpu"), block_size=block_size)
    reference = KVPool.allocate(**shape, blocks=width * len(lengths))
    pool.fill(torch.nan)
    reference.fill(torch.nan)
    tables = torch.randperm(pool.blocks, generator=draw).view(len(lengths), own)
    made = Caches(pool, tables, reference, torch.randperm(reference.blocks, generator=draw).view(len(lengths), width))
    for row, length in enumerate(lengths):
        k, v = torch.randn(2, length, spec.kv_heads, spec.head_dim, generator=draw).to(dtype)
        put(pool, 1, places(tables[row], length, block_size), k, v)
        index = reference.index(places(made.reference_tables[row], length, BLOCK)[:, None])
        reference.write(1, index, k, v)
    return made


def put(pool: GpuKVPool, layer: int, place: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """What the write kernel does, which has tests of its own and takes the interpreter longer than what is tested with the cache."""
    for cache, new in zip(pool.layer(layer), (k, v), strict=True):
        cache[place // pool.block_size, :, place % pool.block_size] = new


def places(table: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    at = torch.arange(length)
    return (table[at // block_size] * block_size + at % block_size).to(torch.int32)
