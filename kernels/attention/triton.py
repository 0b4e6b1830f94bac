# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Paged attention of a whole step in one launch: prefill, decode and all between, over one list of tiles.

A tile is some consecutive queries of one chunk with all query heads of a KV head: row m of a program's block is query
m // group, head m % group. A KV head with more query heads than a block has rows is worked on by several programs, each
with a part of them and one query. KV is walked in chunks of BLOCK_N from a multiple of BLOCK_N on. Where few tiles must look
far back, a tile's KV is cut into splits with a program each, whose partial results a second kernel merges from left to
right (Dao et al., 2023, Flash-Decoding). `fixed`: splits lie at multiples of SPLIT from absolute position 0 and are
merged by one formula whether one program walks them all or each has its own, so that a query's result does not depend
on how the step was cut.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.attention.spec import AttentionSpec
from kernels.gpu.launch import Launcher, power_of_two, up
from kernels.gpu.tiles import Tile
from kernels.kv.triton import GpuKVPool

SPLIT = 512  # positions, where splits are fixed
_LOG2E = 1.4426950408889634
_MOST_SPLITS = 64
_LOW = tl.constexpr(-1e30)  # a maximum so far that is finite, so that rows that see nothing keep exp2() finite


@triton.jit
def _span(split, splits, start, length, window, FIXED: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr):
    """The KV positions of a split of a chunk, before they are limited to what a tile sees."""
    if FIXED:
        begin = split * SPLIT
        end = begin + SPLIT
    else:
        low = tl.maximum(start - window + 1, 0) // BLOCK_N * BLOCK_N
        each = tl.cdiv(tl.cdiv(start + length - low, BLOCK_N), splits) * BLOCK_N
        begin = low + split * each
        end = begin + each
    return begin, end


@triton.jit
def _merge(acc, weight, top, right, right_weight, right_top):
    """Two partial softmaxes of the same queries, the left one first."""
    highest = tl.maximum(top, right_top)
    left_share = tl.exp2(top - highest)
    right_share = tl.exp2(right_top - highest)
    acc = acc * left_share[:, None] + right * right_share[:, None]
    return acc, weight * left_share + right_weight * right_share, highest


@triton.jit
def _walk(
    q, key_ptr, value_ptr, table_ptr, begin, end, seen_end, position, valid, kv_head, scale, softcap, window,
    s_block, s_head, s_place, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Attention of the rows over positions begin .. end - 1: sum of exp2(score - top) * v, sum of exp2(score - top), top.

    Positions from `seen_end` on are not read. Scores are in powers of two.
    """
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    top = tl.full((BLOCK_M,), _LOW, tl.float32)
    dim = tl.arange(0, BLOCK_D)
    for first in range(begin, end, BLOCK_N):
        at = first + tl.arange(0, BLOCK_N)
        held = at < seen_end
        block = tl.load(table_ptr + at // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        base = block * s_block + kv_head * s_head + (at % BLOCK_SIZE) * s_place
        mask = held[:, None] & (dim[None, :] < DIM)
        k = tl.load(key_ptr + base[:, None] + dim[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if CAP:
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores * 2.885390081777927) + 1.0)) * 1.4426950408889634
        seen = (at[None, :] <= position[:, None]) & valid[:, None]
        if WINDOW:
            seen &= at[None, :] > position[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - highest[:, None])
        share = tl.exp2(top - highest)
        v = tl.load(value_ptr + base[:, None] + dim[None, :], mask=mask, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * share[:, None], input_precision="ieee")
        weight = weight * share + tl.sum(p, 1)
        top = highest
    return acc, weight, top


@triton.jit(do_not_specialize=["window", "splits", "s_table", "s_split"])  # they change from step to step
def attention_kernel(
    q_ptr, key_ptr, value_ptr, out_ptr, partial_ptr, stats_ptr, tiles_ptr, chunks_ptr, tables_ptr,
    scale, softcap, window, splits, s_q, s_q_head, s_out, s_table, s_block, s_head, s_place, s_split,
    GROUP: tl.constexpr, PART: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, SPLITS: tl.constexpr, FIXED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = (GROUP + PART - 1) // PART
    kv_head = tl.program_id(1) // PARTS
    split = tl.program_id(2)
    chunk = tl.load(tiles_ptr + 2 * tl.program_id(0))
    offset = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    token = tl.load(chunks_ptr + 3 * chunk) + offset
    start = tl.load(chunks_ptr + 3 * chunk + 1)
    length = tl.load(chunks_ptr + 3 * chunk + 2)
    row = tl.arange(0, BLOCK_M)
    QUERIES: tl.constexpr = BLOCK_M // PART
    count = tl.minimum(length - offset, QUERIES)
    query = row // PART
    valid = query < count
    member = tl.program_id(1) % PARTS * PART + row % PART
    if GROUP % PART:
        valid &= member < GROUP
    position = start + offset + query
    seen_end = start + offset + count
    begin, end = _span(split, splits, start, length, window, FIXED, BLOCK_N, SPLIT)
    if not SPLITS:
        end = seen_end
    first_seen = 0
    if WINDOW:
        first_seen = tl.maximum(start + offset - window + 1, 0) // BLOCK_N * BLOCK_N
    begin = tl.maximum(begin, first_seen)
    end = tl.minimum(end, seen_end)
    if (count > 0) & (begin < end):
        dim = tl.arange(0, BLOCK_D)
        inside = valid[:, None] & (dim[None, :] < DIM)
        head = kv_head * GROUP + member
        tokens = (token + query).to(tl.int64)
        q = tl.load(
            q_ptr + tokens[:, None] * s_q + head[:, None] * s_q_head + dim[None, :], mask=inside, other=0.0
        )  # fmt: skip
        table_ptr = tables_ptr + chunk.to(tl.int64) * s_table
        stop = end
        if FIXED:
            stop = tl.minimum((begin // SPLIT + 1) * SPLIT, end)
        acc, weight, top = _walk(
            q, key_ptr, value_ptr, table_ptr, begin, stop, seen_end, position, valid, kv_head, scale, softcap, window,
            s_block, s_head, s_place, DIM, BLOCK_SIZE, WINDOW, CAP, BLOCK_M, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        if FIXED and not SPLITS:
            for next_begin in range(stop, end, SPLIT):
                right, right_weight, right_top = _walk(
                    q, key_ptr, value_ptr, table_ptr, next_begin, tl.minimum(next_begin + SPLIT, end), seen_end,
                    position, valid, kv_head, scale, softcap, window, s_block, s_head, s_place,
                    DIM, BLOCK_SIZE, WINDOW, CAP, BLOCK_M, BLOCK_N, BLOCK_D,
                )  # fmt: skip
                acc, weight, top = _merge(acc, weight, top, right, right_weight, right_top)
        if SPLITS:
            # Rows of [splits, tokens, heads], s_split apart from split to split.
            to = split.to(tl.int64) * s_split + tokens * (tl.num_programs(1) // PARTS * GROUP) + head
            tl.store(partial_ptr + to[:, None] * DIM + dim[None, :], acc, mask=inside)
            tl.store(stats_ptr + to * 2, weight, mask=valid)
            tl.store(stats_ptr + to * 2 + 1, top, mask=valid)
        else:
            acc = acc / weight[:, None]
            to = tokens[:, None] * s_out + head[:, None] * DIM + dim[None, :]
            tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["window", "splits", "s_split"])
def merge_kernel(
    partial_ptr, stats_ptr, out_ptr, chunk_of_token_ptr, chunks_ptr, window, splits, s_out, s_split,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, FIXED: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    chunk = tl.load(chunk_of_token_ptr + token)
    if chunk >= 0:
        start = tl.load(chunks_ptr + 3 * chunk + 1)
        length = tl.load(chunks_ptr + 3 * chunk + 2)
        position = start + (token - tl.load(chunks_ptr + 3 * chunk)).to(tl.int32)
        dim = tl.arange(0, BLOCK_D)
        inside = (head < HEADS)[:, None] & (dim[None, :] < DIM)
        acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
        weight = tl.zeros((BLOCK_H,), tl.float32)
        top = tl.full((BLOCK_H,), _LOW, tl.float32)
        for split in range(splits):
            begin, end = _span(split, splits, start, length, window, FIXED, BLOCK_N, SPLIT)
            seen = begin <= position
            if WINDOW:
                seen &= end > position - window + 1
            if seen & (end > begin):
                row = split * s_split + token * HEADS + head
                right = tl.load(partial_ptr + row[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
                right_weight = tl.load(stats_ptr + row * 2, mask=head < HEADS, other=0.0)
                right_top = tl.load(stats_ptr + row * 2 + 1, mask=head < HEADS, other=0.0)
                acc, weight, top = _merge(acc, weight, top, right, right_weight, right_top)
        acc = acc / weight[:, None]
        to = token * s_out + head[:, None] * DIM + dim[None, :]
        tl.store(out_ptr + to, acc.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionStep:
    """What attention must know of a step, int32 on the device. `chunks` [chunks, 3]: first token, first position,
    length; `tables` [chunks, blocks]; `chunk_of_token` [tokens], -1 for padding; `tiles` by the queries of a tile (see
    `queries_of`): [tiles, 2], chunk and first token's offset in it. `longest` is the highest end of a chunk,
    `single` whether no chunk has more than one token: numbers that the host knows.
    """

    chunks: torch.Tensor
    tables: torch.Tensor
    chunk_of_token: torch.Tensor
    tiles: dict[int, torch.Tensor]
    longest: int
    single: bool


def attention_tile(launch: Launcher, head_dim: int, dtype: torch.dtype, *, single: bool, fixed: bool) -> Tile:
    """Fixed splits take one tile for every step: another one might sum in another order. float32 has no matrix
    instructions and twice the bytes, and so tiles of its own.
    """
    kind = "attention.fixed" if fixed else "attention.decode" if single else "attention"
    return launch.tile(f"{kind}.wide" if dtype == torch.float32 else kind, power_of_two(head_dim))


def part_of(tile: Tile, group: int) -> int:
    """The query heads that a program works on: all of a KV head's, or where those are more than a block has rows, equal
    parts of them.
    """
    return up(group, up(group, tile["BLOCK_M"]))


def queries_of(tile: Tile, group: int) -> int:
    """How many consecutive queries a tile holds, 1 at least."""
    return tile["BLOCK_M"] // part_of(tile, group)


def attention(
    launch: Launcher, q: torch.Tensor, step: AttentionStep, pool: GpuKVPool, layer: int, spec: AttentionSpec, *,
    fixed: bool,
) -> torch.Tensor:  # fmt: skip
    """q [tokens, heads, head_dim] in the pool's dtype -> [tokens, heads * head_dim] of the same dtype. Rows of padding
    are left as they are.
    """
    tokens, heads, dim = q.shape
    group = spec.heads // spec.kv_heads
    tile = attention_tile(launch, dim, q.dtype, single=step.single, fixed=fixed)
    part = part_of(tile, group)
    programs = spec.kv_heads * up(group, part)  # of a tile and split
    tiles = step.tiles[queries_of(tile, group)]
    key, value = pool.layer(layer)
    out = torch.empty(tokens, heads * dim, dtype=q.dtype, device=q.device)
    reach = step.longest if spec.window is None else spec.window
    splits = _splits(launch, len(tiles) * programs, step, min(reach, step.longest) // (4 * tile["BLOCK_N"]), fixed)
    rows = tokens * heads if splits > 1 else 0
    partial = torch.empty(splits * rows * dim, dtype=torch.float32, device=q.device)
    stats = torch.empty(splits * rows * 2, dtype=torch.float32, device=q.device)
    window = spec.window is not None
    block_d = max(16, power_of_two(dim))  # what a matrix instruction takes at least
    # Under a soft cap the score must be known itself: cap * tanh(score / cap), of which exp2(2 log2(e) x) is the inside.
    scale = spec.scale * _LOG2E if spec.softcap is None else spec.scale / spec.softcap
    launch.run(
        attention_kernel, (len(tiles), programs, splits),
        q, key, value, out, partial if rows else out, stats if rows else out, tiles, step.chunks, step.tables,
        scale, spec.softcap or 0.0, reach, splits, q.stride(0), q.stride(1), out.stride(0),
        step.tables.stride(0), *key.stride()[:3], rows,
        tile=tile, GROUP=group, PART=part, DIM=dim, BLOCK_SIZE=pool.block_size, WINDOW=window,
        CAP=spec.softcap is not None, SPLITS=splits > 1, FIXED=fixed, SPLIT=SPLIT, BLOCK_D=block_d,
    )  # fmt: skip
    if splits > 1:
        merge = launch.tile("attention.merge", block_d)
        launch.run(
            merge_kernel, (tokens, up(heads, merge["BLOCK_H"])),
            partial, stats, out, step.chunk_of_token, step.chunks, reach, splits, out.stride(0), rows,
            tile=merge, HEADS=heads, DIM=dim, WINDOW=window, FIXED=fixed, SPLIT=SPLIT, BLOCK_N=tile["BLOCK_N"],
            BLOCK_D=block_d,
        )  # fmt: skip
    return out


def _splits(launch: Launcher, programs: int, step: AttentionStep, most: int, fixed: bool) -> int:
    """How many splits a step's KV is cut into: enough programs to fill the GPU, `most` at most."""
    if not step.single:
        return 1
    if fixed:
        return up(step.longest, SPLIT)
    return max(1, min(up(2 * launch.arch.units, max(programs, 1)), most, _MOST_SPLITS))
