"""The KV pool: writes are read back, blocks move whole, nothing unwritten leaks."""

import pytest
import torch

from kernels.kv import BLOCK, KVPool, block_bytes

LAYERS, HEADS, DIM, BLOCKS = 3, 2, 24, 7


def pool(dtype: torch.dtype = torch.float32) -> KVPool:
    made = KVPool.allocate(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, blocks=BLOCKS, dtype=dtype)
    made.fill(torch.nan)
    return made


def write(into: KVPool, layer: int, places: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, len(places), HEADS, DIM, generator=draw)
    into.write(layer, into.index(torch.tensor(places)[:, None]), k, v)
    return k, v


def read(source: KVPool, layer: int, places: list[list[int]]) -> torch.Tensor:
    return source.read(layer, source.index(torch.tensor(places)), len(places[0])).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_written_is_read_back_in_any_order_and_width(dtype: torch.dtype) -> None:
    kv = pool(dtype)
    places = [5, 40, 111, 17, 0]
    k, v = write(kv, 1, places, 1)
    got = read(kv, 1, [[40, 5], [0, 111], [17, 17]])
    order = torch.tensor([[1, 0], [4, 2], [3, 3]])
    for found, written in zip(got, (k, v), strict=True):
        assert torch.equal(found, written.to(dtype).float()[order].permute(0, 2, 1, 3))


def test_layers_do_not_share_places() -> None:
    kv = pool()
    write(kv, 0, [3], 1)
    assert read(kv, 1, [[3]]).isnan().all()


def test_the_null_place_reads_as_zero_though_the_cache_is_nan() -> None:
    kv = pool()
    assert (read(kv, 2, [[kv.null, kv.null]]) == 0).all()


def test_copies_read_all_sources_before_any_target_is_written() -> None:
    kv = pool()
    first, second = [list(range(b * BLOCK, (b + 1) * BLOCK)) for b in (1, 2)]
    for layer in range(LAYERS):
        write(kv, layer, first, layer)
        write(kv, layer, second, 10 + layer)
    before = [read(kv, layer, [first, second]) for layer in range(LAYERS)]
    kv.copy_blocks([1, 2], [2, 5])
    for layer in range(LAYERS):
        after = read(kv, layer, [second, list(range(5 * BLOCK, 6 * BLOCK))])
        assert torch.equal(after, before[layer])


def test_exported_blocks_are_whole_in_another_pool() -> None:
    kv, other = pool(torch.bfloat16), pool(torch.bfloat16)
    places = list(range(3 * BLOCK, 4 * BLOCK))
    for layer in range(LAYERS):
        write(kv, layer, places, layer)
    content = kv.export([3])
    assert content.is_contiguous()
    assert content.nbytes == block_bytes(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype=torch.bfloat16)
    other.import_([6], content)
    for layer in range(LAYERS):
        assert torch.equal(read(other, layer, [list(range(6 * BLOCK, 7 * BLOCK))]), read(kv, layer, [places]))


@pytest.mark.parametrize("block", [-1, BLOCKS])
def test_a_block_outside_the_pool_is_refused(block: int) -> None:
    with pytest.raises(IndexError):
        pool().copy_blocks([0], [block])
