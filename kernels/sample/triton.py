# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Greedy choice and drawing, a program a row, without sorting.

The k-th largest value and the nucleus's least likely one are found by bisection over the bit patterns of float32, which
are ordered like the numbers (with the sign folded): at most 32 passes over the row end at one value exactly, whatever
the vocabulary. Filters, sums and random numbers are the reference's.
"""

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, power_of_two, up
from kernels.gpu.tiles import Tile
from kernels.sample.filters import BLOCK
from kernels.sample.reference import Draw

_BIG = tl.constexpr(2**31 - 1)


@triton.jit
def greedy_kernel(logits_ptr, out_ptr, s_row, vocabulary, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((BLOCK_V,), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK_V,), tl.int32)
    for first in range(0, vocabulary, BLOCK_V):
        at = first + tl.arange(0, BLOCK_V)
        x = tl.load(logits_ptr + row * s_row + at, mask=at < vocabulary, other=float("-inf"))
        better = x > best
        where = tl.where(better, at, where)
        best = tl.where(better, x, best)
    token = tl.min(tl.where(best == tl.max(best, 0), where, _BIG), 0)
    tl.store(out_ptr + row, token.to(tl.int64))


@triton.jit
def finite_kernel(logits_ptr, out_ptr, s_row, vocabulary, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    bad = tl.zeros((BLOCK_V,), tl.int32)
    for first in range(0, vocabulary, BLOCK_V):
        at = first + tl.arange(0, BLOCK_V)
        bits = tl.load(logits_ptr + row * s_row + at, mask=at < vocabulary, other=0.0).to(tl.int32, bitcast=True)
        bad |= ((bits & 0x7F800000) == 0x7F800000).to(tl.int32)
    tl.store(out_ptr + row, (tl.max(bad, 0) == 0).to(tl.uint8))


@triton.jit
def _key(x):
    """A number that is ordered as the float32 is."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _tile(row_ptr, first, vocabulary, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    """Values of UNROLL blocks from `first` on, [UNROLL, BLOCK], -inf past the end."""
    at = first + tl.arange(0, UNROLL)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    return tl.load(row_ptr + at, mask=at < vocabulary, other=float("-inf"))


@triton.jit
def _count(row_ptr, vocabulary, low, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    """How many values are at least `low`."""
    counts = tl.zeros((UNROLL, BLOCK), tl.int32)
    for first in range(0, vocabulary, UNROLL * BLOCK):
        counts += (_tile(row_ptr, first, vocabulary, UNROLL, BLOCK) >= low).to(tl.int32)
    return tl.sum(tl.sum(counts, 1), 0)


@triton.jit
def _mass(row_ptr, vocabulary, top, low, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of exp(value - top) of values that are at least `low`, float64 over float32 sums of blocks."""
    total = tl.zeros((UNROLL,), tl.float64)
    for first in range(0, vocabulary, UNROLL * BLOCK):
        x = _tile(row_ptr, first, vocabulary, UNROLL, BLOCK)
        total += tl.sum(tl.where(x >= low, tl.exp(x - top), 0.0), 1).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def _middle(low, high):
    """Between two keys, above `low`, without overflow."""
    return (low >> 1) + (high >> 1) + (low & high & 1) + ((low ^ high) & 1)


@triton.jit
def _random(key0, key1, c0, c1):
    """The first word of Philox4x32-10 at counter (c0, c1, 0, 0), as kernels.sample.philox."""
    x0 = c0
    x1 = c1
    x2 = tl.zeros_like(c0)
    x3 = tl.zeros_like(c0)
    a = tl.full(c0.shape, 0xD2511F53, tl.uint32)
    b = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        high0 = tl.umulhi(a, x0)
        high1 = tl.umulhi(b, x2)
        low0 = a * x0
        low1 = b * x2
        x0 = high1 ^ x1 ^ key0
        x1 = low1
        x2 = high0 ^ x3 ^ key1
        x3 = low0
        key0 += 0x9E3779B9
        key1 += 0xBB67AE85
    return x0


@triton.jit(do_not_specialize=["rows"])
def random_kernel(low_ptr, high_ptr, position_ptr, choice_ptr, out_ptr, rows, BLOCK_R: tl.constexpr):
    at = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = at < rows
    key0 = tl.load(low_ptr + at, mask=inside, other=0).to(tl.uint32)
    key1 = tl.load(high_ptr + at, mask=inside, other=0).to(tl.uint32)
    c0 = tl.load(position_ptr + at, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(choice_ptr + at, mask=inside, other=0).to(tl.uint32)
    u = _random(key0, key1, c0, c1).to(tl.float64) * 2.3283064365386963e-10
    tl.store(out_ptr + at, u, mask=inside)


@triton.jit
def _lowest_kept(row_ptr, vocabulary, top, least, top_k, top_p, min_p, UNROLL: tl.constexpr, BLOCK: tl.constexpr):
    """The threshold of kernels.sample.filters; -inf where nothing is filtered. `least` is the row's smallest finite value."""
    lowest = tl.full((), float("-inf"), tl.float32)
    low = _key(least)
    if (top_k > 0) & (top_k < vocabulary):
        high = _key(top)
        while low < high:
            middle = _middle(low, high)
            enough = _count(row_ptr, vocabulary, _value(middle), UNROLL, BLOCK) >= top_k
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle - 1)
        lowest = _value(low)
    if top_p < 1.0:
        wanted = top_p.to(tl.float64) * _mass(row_ptr, vocabulary, top, lowest, UNROLL, BLOCK)
        high = _key(top)
        while low < high:
            middle = _middle(low, high)
            enough = _mass(row_ptr, vocabulary, top, _value(middle), UNROLL, BLOCK) >= wanted
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle - 1)
        lowest = _value(low)
    if min_p > 0.0:
        lowest = tl.maximum(lowest, top + tl.log(min_p))
    return tl.minimum(lowest, top)


@triton.jit
def sample_kernel(
    scaled_ptr, top_k_ptr, top_p_ptr, min_p_ptr, u_ptr, out_ptr, s_row, vocabulary,
    BLOCKS: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    row_ptr = scaled_ptr + row * s_row
    tops = tl.full((UNROLL, BLOCK), float("-inf"), tl.float32)
    lows = tl.full((UNROLL, BLOCK), float("inf"), tl.float32)
    for first in range(0, vocabulary, UNROLL * BLOCK):
        x = _tile(row_ptr, first, vocabulary, UNROLL, BLOCK)
        tops = tl.maximum(tops, x)
        lows = tl.minimum(lows, tl.where(x == float("-inf"), float("inf"), x))
    top = tl.max(tl.max(tops, 1), 0)
    least = tl.min(tl.min(lows, 1), 0)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    lowest = _lowest_kept(row_ptr, vocabulary, top, least, top_k, top_p, min_p, UNROLL, BLOCK)

    group = tl.arange(0, BLOCKS // UNROLL)[:, None]
    table = tl.zeros((BLOCKS // UNROLL, UNROLL), tl.float32)
    for first in range(0, vocabulary, UNROLL * BLOCK):
        x = _tile(row_ptr, first, vocabulary, UNROLL, BLOCK)
        sums = tl.sum(tl.where(x >= lowest, tl.exp(x - top), 0.0), 1)
        table = tl.where(group == first // (UNROLL * BLOCK), sums[None, :], table)
    sums = tl.reshape(table, (BLOCKS,)).to(tl.float64)
    edges = tl.cumsum(sums, 0)
    number = tl.arange(0, BLOCKS)
    target = tl.load(u_ptr + row) * tl.max(edges, 0)
    block = _first((edges > target) & (sums > 0), sums > 0, number)
    before = tl.max(tl.where(number < block, edges, 0.0), 0)

    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row_ptr + at, mask=at < vocabulary, other=float("-inf"))
    inside = tl.where(x >= lowest, tl.exp(x - top), 0.0).to(tl.float64)
    token = _first((tl.cumsum(inside, 0) > target - before) & (inside > 0), inside > 0, at)
    tl.store(out_ptr + row, tl.minimum(token, vocabulary - 1).to(tl.int64))


@triton.jit
def _first(hit, positive, number):
    """The first number that is hit; where rounding left none, the last positive one."""
    first = tl.min(tl.where(hit, number, _BIG), 0)
    return tl.where(first < _BIG, first, tl.maximum(tl.max(tl.where(positive, number, -1), 0), 0))


def greedy(launch: Launcher, logits: torch.Tensor) -> torch.Tensor:
    """logits float32 [rows, vocabulary] -> int64 [rows]: the most likely token, the lowest of equals."""
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    tile = launch.tile("greedy")
    launch.run(greedy_kernel, (len(logits),), logits, out, logits.stride(0), logits.shape[1], tile=tile)
    return out


def finite(launch: Launcher, logits: torch.Tensor) -> torch.Tensor:
    """logits float32 [rows, vocabulary] -> bool [rows]: whether a row holds neither a NaN nor an infinity."""
    out = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    tile = launch.tile("greedy")
    launch.run(finite_kernel, (len(logits),), logits, out, logits.stride(0), logits.shape[1], tile=tile)
    return out.view(torch.bool)


def uniform(launch: Launcher, draw: Draw) -> torch.Tensor:
    """float64 [rows] in [0, 1): kernels.sample.philox.uniform of use 0."""
    rows = len(draw.position)
    out = torch.empty(rows, dtype=torch.float64, device=draw.position.device)
    tile = Tile(blocks={"BLOCK_R": 128}, warps=4, stages=1)
    words = (draw.seed_low, draw.seed_high, draw.position, draw.choice)
    launch.run(random_kernel, (up(rows, 128),), *words, out, rows, tile=tile)
    return out


def sample(launch: Launcher, logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """logits float32 [rows, vocabulary] (finite, or -inf for what is forbidden), `draw` on the same device -> int64
    [rows].
    """
    scaled = logits / draw.temperature[:, None]
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    tile = launch.tile("sample")
    blocks = max(power_of_two(up(logits.shape[1], BLOCK)), tile["UNROLL"])
    launch.run(
        sample_kernel, (len(logits),),
        scaled, draw.top_k, draw.top_p, draw.min_p, uniform(launch, draw), out, scaled.stride(0), logits.shape[1],
        tile=tile, BLOCKS=blocks, BLOCK=BLOCK,
    )  # fmt: skip
    return out
