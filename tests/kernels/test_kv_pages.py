"""Memory of a KV pool comes ahead of the blocks that steps name, and no more of it than that."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from kernels.backend import backend
from kernels.cpu import isa
from kernels.kv.pages import PagesAhead

MIB = 1 << 20


class Touched:
    """What was asked of the system, in order."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, first: int, last: int) -> None:
        self.ranges.append((first, last))


def test_memory_is_asked_for_once_in_order_and_ahead_of_what_is_used() -> None:
    touched = Touched()
    pages = PagesAhead(touched, blocks=1000, block_bytes=MIB)  # 64 blocks ahead
    for block in (0, 1, 5, 40, 41, 100, 99, 400, 998, 999):
        pages.reached(block)
        pages.settle()
        assert touched.ranges[-1][1] > min(block, 999), block
        assert touched.ranges[-1][1] <= 400 + 64 or block >= 998
    assert touched.ranges[0][0] == 0
    assert touched.ranges[-1][1] == 1000
    assert all(last == first for (_, last), (first, _) in zip(touched.ranges, touched.ranges[1:], strict=False))


def test_few_steps_ask_for_little() -> None:
    touched = Touched()
    pages = PagesAhead(touched, blocks=10_000, block_bytes=MIB)
    for _ in range(50):
        pages.reached(3)
        pages.settle()
    assert touched.ranges == [(0, 3 + 64)]


def resident(address: int) -> int:
    """Bytes in memory of the mapping at that address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux alone")
def test_a_pool_holds_memory_for_what_was_reached_and_keeps_what_is_written() -> None:
    ops = backend("cpu", threads=1, isa=isa.levels()[0])
    pool = ops.kv_pool(layers=4, kv_heads=2, head_dim=64, blocks=32_768, dtype=torch.bfloat16)  # 1 GiB
    content = torch.randint(256, (1, 4, 8192), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    pool.import_([7], content)
    before = resident(pool.struct.data)
    pool.pages.reached(7)
    pool.pages.settle()
    assert before <= resident(pool.struct.data) <= before + 256 * MIB
    assert torch.equal(pool.export([7]), content)
    assert not pool.export([8, 2000]).any()
