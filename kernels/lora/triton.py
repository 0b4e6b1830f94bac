# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Adapters of many slots over one batch: y += b @ (scale * (a @ x)), slot by slot (Chen et al., 2023, Punica; Sheng et al.,
2023, S-LoRA), for one projection that stacks the rows of several modules.

Tokens are ordered by slot and cut into *jobs* of one slot's tokens. `shrink` computes a @ x in SPLIT_K parts of K, each
stored apart, so that `expand` adds them in one order; ranks may differ from slot to slot and module to module.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, power_of_two, up
from kernels.gpu.tiles import Tile
from kernels.lora.slots import NONE

_ROWS = (16, 64)  # tokens of a job: few where slots have few tokens each
_LEAST_RANK = 16  # rows and columns that a matrix instruction takes at least


@triton.jit(do_not_specialize=["tokens"])
def shrink_kernel(
    x_ptr, a_ptr, ranks_ptr, order_ptr, jobs_ptr, y_ptr, k, s_x, s_slot, s_module, s_rank, tokens,
    MODULES: tl.constexpr, RANK: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    job_ptr = jobs_ptr + 3 * tl.program_id(0)
    module = tl.program_id(1)
    split = tl.program_id(2)
    slot = tl.load(job_ptr)
    first = tl.load(job_ptr + 1)
    count = tl.load(job_ptr + 2)
    rank = tl.load(ranks_ptr + slot * MODULES + module)
    if (rank > 0) & (count > 0):
        row = tl.arange(0, BLOCK_M)
        r = tl.arange(0, RANK)
        token = tl.load(order_ptr + first + row, mask=row < count, other=0).to(tl.int64)
        weight_ptr = a_ptr + slot.to(tl.int64) * s_slot + module * s_module
        acc = tl.zeros((BLOCK_M, RANK), tl.float32)
        each = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT_K) * BLOCK_K
        for start in range(split * each, tl.minimum((split + 1) * each, k), BLOCK_K):
            at = start + tl.arange(0, BLOCK_K)
            x = tl.load(
                x_ptr + token[:, None] * s_x + at[None, :], mask=(row < count)[:, None] & (at < k)[None, :], other=0.0
            )  # fmt: skip
            a = tl.load(
                weight_ptr + r[:, None] * s_rank + at[None, :], mask=(r < rank)[:, None] & (at < k)[None, :], other=0.0
            )
            acc = tl.dot(x, tl.trans(a), acc, input_precision="ieee")
        to = (((split * MODULES + module) * tokens).to(tl.int64) + first + row) * RANK
        tl.store(y_ptr + to[:, None] + r[None, :], acc, mask=(row < count)[:, None])


@triton.jit(do_not_specialize=["tokens"])
def expand_kernel(
    y_ptr, b_ptr, ranks_ptr, scales_ptr, offsets_ptr, order_ptr, jobs_ptr, out_ptr,
    s_slot, s_column, s_out, tokens,
    MODULES: tl.constexpr, RANK: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    job_ptr = jobs_ptr + 3 * tl.program_id(0)
    # The column block's module: blocks are numbered module after module.
    block = tl.program_id(1)
    module = 0
    low = 0
    high = tl.load(offsets_ptr + 1)
    for _ in tl.static_range(MODULES - 1):
        blocks = tl.cdiv(high - low, BLOCK_N)
        past = block >= blocks
        block = tl.where(past, block - blocks, block)
        module = tl.where(past, module + 1, module)
        low = tl.load(offsets_ptr + module)
        high = tl.load(offsets_ptr + module + 1)
    slot = tl.load(job_ptr)
    first = tl.load(job_ptr + 1)
    count = tl.load(job_ptr + 2)
    rank = tl.load(ranks_ptr + slot * MODULES + module)
    column = low + block * BLOCK_N + tl.arange(0, BLOCK_N)
    if (rank > 0) & (count > 0):
        row = tl.arange(0, BLOCK_M)
        r = tl.arange(0, RANK)
        held = row < count
        y = tl.zeros((BLOCK_M, RANK), tl.float32)
        for split in tl.static_range(SPLIT_K):
            at = (((split * MODULES + module) * tokens).to(tl.int64) + first + row) * RANK
            y += tl.load(y_ptr + at[:, None] + r[None, :], mask=held[:, None], other=0.0)
        b = tl.load(
            b_ptr + slot.to(tl.int64) * s_slot + column[:, None].to(tl.int64) * s_column + r[None, :],
            mask=(column < high)[:, None] & (r < rank)[None, :], other=0.0,
        )  # fmt: skip
        y *= tl.load(scales_ptr + slot * MODULES + module)
        change = tl.dot(y.to(b.dtype), tl.trans(b), input_precision="ieee")
        token = tl.load(order_ptr + first + row, mask=held, other=0).to(tl.int64)
        to = out_ptr + token[:, None] * s_out + column[None, :]
        mask = held[:, None] & (column < high)[None, :]
        before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
        tl.store(to, (before + change).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def embed_kernel(
    tokens_ptr, a_ptr, ranks_ptr, order_ptr, slots_ptr, y_ptr, s_slot, s_token, scale, RANK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    slot = tl.load(slots_ptr + place)
    token = tl.load(tokens_ptr + tl.load(order_ptr + place)).to(tl.int64)
    r = tl.arange(0, RANK)
    held = r < tl.load(ranks_ptr + slot)
    y = tl.load(a_ptr + slot.to(tl.int64) * s_slot + token * s_token + r, mask=held, other=0.0).to(tl.float32) * scale
    tl.store(y_ptr + place.to(tl.int64) * RANK + r, y)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoraStack:
    """All slots' adapters of one projection. `a` [slots, modules, max rank, k], `b` [slots, n, max rank] with n the rows of
    all modules, `ranks` int32 and `scales` float32 [slots, modules] (rank 0: the module is left alone), `offsets` int32
    [modules + 1] the modules' first rows in n.
    """

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor
    rows: tuple[int, ...]

    @classmethod
    def empty(
        cls, rows: tuple[int, ...], k: int, *, slots: int, max_rank: int, dtype: torch.dtype, device: torch.device,
        by_token: bool = False,
    ) -> "LoraStack":  # fmt: skip
        """Slots without adapters, for modules of `rows` rows each and `k` inputs. Memory is taken at once. `by_token`: for
        the embedding, `a` is kept as [slots, 1, k, max rank].
        """
        offsets = np.concatenate(([0], np.cumsum(rows)))
        shape = (k, max_rank) if by_token else (max_rank, k)
        return cls(
            a=torch.zeros(slots, len(rows), *shape, dtype=dtype, device=device),
            b=torch.zeros(slots, sum(rows), max_rank, dtype=dtype, device=device),
            ranks=torch.zeros(slots, len(rows), dtype=torch.int32, device=device),
            scales=torch.zeros(slots, len(rows), dtype=torch.float32, device=device),
            offsets=torch.tensor(offsets, dtype=torch.int32, device=device),
            rows=rows,
        )

    @property
    def rank(self) -> int:
        """Columns of what lies between the two products: the largest rank, filled up for the matrix instructions."""
        return max(_LEAST_RANK, power_of_two(self.b.shape[2]))

    def put(self, slot: int, module: int, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        """Install one module: a [rank, k] (by token: [k, rank]), b [rows of the module, rank]."""
        rank, low = b.shape[1], sum(self.rows[:module])
        self.a[slot, module, : a.shape[0], : a.shape[1]] = a.to(self.a.device, self.a.dtype)
        self.b[slot, low : low + self.rows[module], :rank] = b.to(self.b.device, self.b.dtype)
        self.scales[slot, module] = scale
        self.ranks[slot, module] = rank

    def clear(self, slot: int) -> None:
        """Leave all modules alone in the slot."""
        self.ranks[slot].zero_()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoraStep:
    """A step's tokens by slot, int32. `order` and `slots` [tokens with adapters]: their numbers and slots; `jobs`
    [jobs, 3]: slot, first in `order`, count, at most `rows`. What fills a step up is a job of no tokens: it costs
    a launch's program and nothing else; entries of `order` and `slots` that no job covers are zero.
    """

    order: torch.Tensor
    slots: torch.Tensor
    jobs: torch.Tensor
    rows: int


def jobs(
    slots: npt.NDArray[np.int64], *, fixed: bool = False
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """LoraStep's order, jobs and rows, of the slot of each token [tokens] (NONE: no adapter). `fixed`: jobs are of one
    size, whatever the step, since each size sums in an order of its own.
    """
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], NONE + 1) :]
    names, counts = np.unique(slots[order], return_counts=True)
    rows = _ROWS[int(not fixed and len(counts) > 0 and counts.max() > 2 * _ROWS[0])]
    pieces = -(-counts // rows)
    inside = (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * rows
    firsts = np.repeat(np.cumsum(counts) - counts, pieces) + inside
    left = np.repeat(counts, pieces) - inside
    made = np.stack((np.repeat(names, pieces), firsts, np.minimum(left, rows)), axis=1)
    return order.astype(np.int32), made.astype(np.int32), rows


def most_jobs(tokens: int, slots: int, rows: int = _ROWS[0]) -> int:
    """The most jobs of `rows` tokens that `tokens` tokens can make, in whatever way they name `slots` slots."""
    return min(tokens, slots + tokens // rows)


def jobs_there(slots: torch.Tensor, count: int) -> LoraStep:
    """The jobs of rows whose adapters' `slots` int32 [rows] (NONE: none) the device alone knows; slots are 0 .. count - 1.
    Sizes depend on nothing but the numbers of rows and slots.
    """
    order, size = torch.argsort(slots, stable=True), _ROWS[0]  # NONE comes first
    each = (slots[:, None] == torch.arange(count, device=slots.device)).sum(0)
    pieces = (each + size - 1) // size
    ends = pieces.cumsum(0)
    number = torch.arange(most_jobs(len(slots), count), device=slots.device)
    slot = torch.searchsorted(ends, number, right=True).clamp_max(count - 1)
    inside = (number - (ends - pieces)[slot]) * size
    first = len(slots) - each.sum() + (each.cumsum(0) - each)[slot] + inside
    made = torch.stack((slot, first, (each[slot] - inside).clamp(0, size)), dim=1)
    return LoraStep(order=order.int(), slots=slots.index_select(0, order), jobs=made.int(), rows=size)


def apply(launch: Launcher, x: torch.Tensor, stack: LoraStack, step: LoraStep, out: torch.Tensor) -> None:
    """out [tokens, n] += the adapters' changes for x [tokens, k] in the stack's dtype, in place. Rows of tokens without
    adapter are not touched.
    """
    modules, tokens, rank = len(stack.rows), len(step.order), stack.rank
    tile = launch.tile("lora.shrink", step.rows)
    parts = tile["SPLIT_K"]
    y = torch.empty(parts * modules * tokens * rank, dtype=torch.float32, device=x.device)
    launch.run(
        shrink_kernel, (len(step.jobs), modules, parts),
        x, stack.a, stack.ranks, step.order, step.jobs, y, x.shape[1], x.stride(0), *stack.a.stride()[:3], tokens,
        tile=tile, MODULES=modules, RANK=rank,
    )  # fmt: skip
    _expand(launch, y, stack, step, out, parts)


def apply_embedding(
    launch: Launcher, tokens: torch.Tensor, stack: LoraStack, step: LoraStep, out: torch.Tensor, scale: float
) -> None:
    """out float32 [tokens, hidden] += scale * the changes for tokens int64 [tokens], in place. The stack's `a` is
    [slots, 1, vocabulary, max rank].
    """
    count, rank = len(step.order), stack.rank
    y = torch.empty(count * rank, dtype=torch.float32, device=out.device)
    tile = Tile(blocks={}, warps=1, stages=1)
    launch.run(
        embed_kernel, (count,),
        tokens, stack.a, stack.ranks, step.order, step.slots, y, stack.a.stride(0), stack.a.stride(2), scale,
        tile=tile, RANK=rank,
    )  # fmt: skip
    _expand(launch, y, stack, step, out, 1)


def _expand(launch: Launcher, y: torch.Tensor, stack: LoraStack, step: LoraStep, out: torch.Tensor, parts: int) -> None:
    tile = launch.tile("lora.expand", step.rows)
    columns = sum(up(rows, tile["BLOCK_N"]) for rows in stack.rows)
    launch.run(
        expand_kernel, (len(step.jobs), columns),
        y, stack.b, stack.ranks, stack.scales, stack.offsets, step.order, step.jobs, out,
        stack.b.stride(0), stack.b.stride(1), out.stride(0), len(step.order),
        tile=tile, MODULES=len(stack.rows), RANK=stack.rank, SPLIT_K=parts,
    )  # fmt: skip
