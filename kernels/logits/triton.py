# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""What is done to logits on their way to the sampler, and log-probabilities of chosen tokens."""

import torch
import triton
import triton.language as tl

from kernels.gpu.launch import Launcher, up
from kernels.gpu.tiles import Tile
from kernels.logits.changes import Seen, Words, words

__all__ = [
    "Seen", "Words", "bias_", "blank_", "forbid_", "forbid_endings_", "logprobs", "mask_", "penalise_", "softcap_", "words",
]  # fmt: skip

_ANY = tl.constexpr(-2)  # kernels.sample.adjust.ANY
_PAIRS = 256  # of a program


@triton.jit
def softcap_kernel(logits_ptr, s_row, width, softcap, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    x = tl.load(logits_ptr + row * s_row + at, mask=at < width, other=0.0)
    tanh = 1.0 - 2.0 / (tl.exp(2.0 * (x / softcap)) + 1.0)
    tl.store(logits_ptr + row * s_row + at, softcap * tanh, mask=at < width)


@triton.jit
def _bit(words_ptr, at, inside):
    return (tl.load(words_ptr + at // 32, mask=inside, other=0) >> (at % 32)) & 1


@triton.jit
def blank_kernel(logits_ptr, good_ptr, s_row, width, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(good_ptr + row) == 0:
        at = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
        tl.store(logits_ptr + row * s_row + at, tl.zeros((BLOCK_V,), tl.float32), mask=at < width)


@triton.jit
def mask_kernel(
    logits_ptr, rows_ptr, allowed_ptr, entries_ptr, s_row, s_allowed, width, ENTRIES: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    job = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + job)
    entry = job
    if ENTRIES:
        entry = tl.load(entries_ptr + job)
    at = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = at < width
    allowed = _bit(allowed_ptr + entry * s_allowed, at, inside)
    tl.store(logits_ptr + row * s_row + at, float("-inf"), mask=inside & (allowed == 0))


@triton.jit
def penalise_kernel(
    logits_ptr, rows_ptr, entries_ptr, counts_ptr, prompts_ptr, penalties_ptr, s_row, s_counts, s_prompts, width,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    job = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + job)
    entry = tl.load(entries_ptr + job)
    repetition = tl.load(penalties_ptr + 3 * entry)
    presence = tl.load(penalties_ptr + 3 * entry + 1)
    frequency = tl.load(penalties_ptr + 3 * entry + 2)
    at = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = at < width
    count = tl.load(counts_ptr + entry * s_counts + at, mask=inside, other=0)
    seen = (count > 0) | (_bit(prompts_ptr + entry * s_prompts, at, inside) == 1)
    x = tl.load(logits_ptr + row * s_row + at, mask=inside & seen, other=0.0)
    # A forbidden token stays forbidden: -inf times the penalty is -inf.
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x -= count.to(tl.float32) * frequency + tl.where(count > 0, presence, 0.0)
    tl.store(logits_ptr + row * s_row + at, x, mask=inside & seen)


@triton.jit(do_not_specialize=["pairs"])
def bias_kernel(logits_ptr, rows_ptr, tokens_ptr, values_ptr, s_row, pairs, BLOCK_P: tl.constexpr):
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = at < pairs
    row = tl.load(rows_ptr + at, mask=inside, other=0)
    token = tl.load(tokens_ptr + at, mask=inside, other=0)
    to = logits_ptr + row * s_row + token
    x = tl.load(to, mask=inside, other=0.0)
    tl.store(to, x + tl.load(values_ptr + at, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["pairs"])
def forbid_kernel(logits_ptr, rows_ptr, tokens_ptr, s_row, pairs, BLOCK_P: tl.constexpr):
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = at < pairs
    row = tl.load(rows_ptr + at, mask=inside, other=0)
    token = tl.load(tokens_ptr + at, mask=inside, other=0)
    tl.store(logits_ptr + row * s_row + token, float("-inf"), mask=inside)


@triton.jit(do_not_specialize=["s_buffer", "pairs", "length"])
def forbid_endings_kernel(
    logits_ptr, rows_ptr, tokens_ptr, beginnings_ptr, slots_ptr, prompts_ptr, ends_ptr, buffer_ptr, s_row, s_buffer,
    pairs, length, BLOCK_P: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = pair < pairs
    row = tl.load(rows_ptr + pair, mask=inside, other=0)
    token = tl.load(tokens_ptr + pair, mask=inside, other=0)
    slot = tl.load(slots_ptr + pair, mask=inside, other=0)
    prompt = tl.load(prompts_ptr + pair, mask=inside, other=0)
    first = tl.load(ends_ptr + pair, mask=inside, other=0) - length
    missed = tl.zeros((BLOCK_P,), tl.int32)
    for i in range(length):
        wanted = tl.load(beginnings_ptr + pair * length + i, mask=inside, other=0)
        there = inside & (first + i >= prompt)
        held = tl.load(buffer_ptr + slot * s_buffer + first + i, mask=there, other=-1)
        missed |= ((wanted != _ANY) & (wanted != held)).to(tl.int32)
    # Pairs that come twice and differ in their beginnings only ever store the same value.
    tl.store(logits_ptr + row * s_row + token, float("-inf"), mask=inside & (missed == 0))


@triton.jit(do_not_specialize=["s_tokens", "s_out", "count"])
def logprobs_kernel(
    logits_ptr,
    tokens_ptr,
    out_ptr,
    normaliser_ptr,
    s_row,
    s_tokens,
    s_out,
    count,
    width,
    COUNT: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * s_row
    tops = tl.full((BLOCK_V,), float("-inf"), tl.float32)
    for first in range(0, width, BLOCK_V):
        at = first + tl.arange(0, BLOCK_V)
        tops = tl.maximum(tops, tl.load(row_ptr + at, mask=at < width, other=float("-inf")))
    top = tl.max(tops, 0)
    total = tl.zeros((), tl.float64)
    for first in range(0, width, BLOCK_V):
        at = first + tl.arange(0, BLOCK_V)
        x = tl.load(row_ptr + at, mask=at < width, other=float("-inf"))
        total += tl.sum(tl.exp(x - top), 0).to(tl.float64)
    normaliser = top + tl.log(total.to(tl.float32))
    at = tl.arange(0, COUNT)
    token = tl.load(tokens_ptr + row * s_tokens + at, mask=at < count, other=0)
    value = tl.load(row_ptr + token, mask=at < count, other=0.0)
    tl.store(out_ptr + row * s_out + at, value - normaliser, mask=at < count)
    tl.store(normaliser_ptr + row, normaliser)


def softcap_(launch: Launcher, logits: torch.Tensor, softcap: float) -> None:
    """softcap * tanh(logits / softcap), in place."""
    _over(launch, softcap_kernel, len(logits), logits, logits.stride(0), logits.shape[1], softcap)


def blank_(launch: Launcher, logits: torch.Tensor, good: torch.Tensor) -> None:
    """Zeros in the rows that are not `good` bool [rows]."""
    _over(launch, blank_kernel, len(logits), logits, good.view(torch.uint8), logits.stride(0), logits.shape[1])


def mask_(
    launch: Launcher, logits: torch.Tensor, rows: torch.Tensor, allowed: torch.Tensor,
    entries: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Forbid, in the logits' `rows` int64 [n], all tokens whose bits in `allowed` int32 [entries, words] are zero, row
    by row or in its entry of `entries` int64 [n].
    """
    _over(
        launch, mask_kernel, len(rows), logits, rows, allowed, rows if entries is None else entries,
        logits.stride(0), allowed.stride(0), logits.shape[1], ENTRIES=entries is not None,
    )  # fmt: skip


def forbid_(launch: Launcher, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Forbid the pairs of `rows` and `tokens` int64 [pairs], in place."""
    columns = (rows.contiguous(), tokens.contiguous())
    _pairs(launch, forbid_kernel, len(rows), logits, *columns, logits.stride(0), len(rows))


def forbid_endings_(launch: Launcher, logits: torch.Tensor, found: Words, buffer: torch.Tensor) -> None:
    """Forbid the pairs whose outputs in `buffer` int64 [slots, positions] end as they must, in place."""
    pairs, length = found.beginnings.shape
    columns = (found.rows, found.tokens, found.beginnings, found.slots, found.prompts, found.ends)
    _pairs(
        launch, forbid_endings_kernel, pairs, logits, *(column.contiguous() for column in columns), buffer,
        logits.stride(0), buffer.stride(0), pairs, length,
    )  # fmt: skip


def penalise_(launch: Launcher, logits: torch.Tensor, rows: torch.Tensor, entries: torch.Tensor, seen: Seen) -> None:
    """kernels.sample.adjust.penalise of the logits' `rows` int64 [n] by `entries` int64 [n] of `seen`, in place."""
    _over(
        launch, penalise_kernel, len(rows), logits, rows, entries, seen.counts, seen.prompts, seen.penalties,
        logits.stride(0), seen.counts.stride(0), seen.prompts.stride(0), logits.shape[1],
    )  # fmt: skip


def bias_(
    launch: Launcher, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor
) -> None:
    """Add `values` float32 [pairs] to the distinct pairs of `rows` and `tokens` int64 [pairs], in place."""
    columns = (rows.contiguous(), tokens.contiguous(), values.contiguous())
    _pairs(launch, bias_kernel, len(rows), logits, *columns, logits.stride(0), len(rows))


def logprobs(launch: Launcher, logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logits float32 [rows, vocabulary], tokens int64 [rows, n] -> log-probabilities float32 [rows, n], and
    log sum exp float32 [rows].
    """
    out = torch.empty(tokens.shape, dtype=torch.float32, device=logits.device)
    normaliser = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    tile = launch.tile("logprobs")
    count = tokens.shape[1]
    launch.run(
        logprobs_kernel, (len(logits),),
        logits, tokens, out, normaliser, logits.stride(0), tokens.stride(0), out.stride(0), count, logits.shape[1],
        tile=tile, COUNT=triton.next_power_of_2(max(count, 1)),
    )  # fmt: skip
    return out, normaliser


def _over(
    launch: Launcher, kernel: object, jobs: int, logits: torch.Tensor, *args: object, **constants: object
) -> None:
    tile = launch.tile("logits")
    launch.run(kernel, (jobs, up(logits.shape[1], tile["BLOCK_V"])), logits, *args, tile=tile, **constants)


def _pairs(launch: Launcher, kernel: object, pairs: int, *args: object) -> None:
    launch.run(kernel, (up(pairs, _PAIRS),), *args, tile=Tile(blocks={"BLOCK_P": _PAIRS}, warps=4, stages=1))
