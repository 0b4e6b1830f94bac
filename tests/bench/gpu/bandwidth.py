"""What only moves memory: norms, rotary and KV write, activations, the sampler, adapters."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from kernels.attn_in.triton import Positions, turn_and_write
from kernels.embed.triton import embed
from kernels.kv.triton import GpuKVPool, write
from kernels.logits.triton import logprobs, mask_, penalise_, words
from kernels.lora.triton import LoraStack, apply
from kernels.mlp.triton import gated
from kernels.rms_norm.triton import add_rms_norm, rms_norm
from kernels.rotary.table import RotarySpec, RotaryTable, rotary_table
from kernels.sample.triton import finite, greedy, sample
from kernels.weights import AttnIn, Embedding, HeadNorm, Norm
from tests.bench.gpu.bed import Bed, Row, Tensor
from tests.bench.gpu.check_layers import lora_step
from tests.bench.gpu.check_sampler import draws, logits_of, packed, seen_of

Runs = dict[str, tuple[Callable[[], object], int]]  # what to run, and the bytes that it cannot but move


def rows(bed: Bed) -> Iterator[Row]:
    """Norms, rotary, activations, embedding of Llama 3 8B, as a share of what a copy moves."""
    for tokens in bed.size((2,), (8192, 256)):
        for name, (run, moved) in {**_streams(bed, tokens), **_turns(bed, tokens)}.items():
            seconds = bed.seconds(run)
            share = moved / seconds / bed.copy_rate()
            yield {"kernel": name, "tokens": tokens, "us": 1e6 * seconds, "of_copy": share}


def _streams(bed: Bed, tokens: int) -> Runs:
    hidden, inner = bed.size((64, 96), (4096, 14336))
    x, y = bed.drawn(tokens, hidden, dtype=torch.float32), bed.drawn(tokens, hidden)
    norm, both = Norm(weight=torch.ones(hidden, device=bed.device), eps=1e-5), bed.drawn(tokens, 2 * inner)
    table = Embedding(table=bed.drawn(bed.size(100, 128_256), hidden))
    ids = torch.randint(len(table.table), (tokens,), device=bed.device)
    return {
        "rms_norm": (lambda: rms_norm(bed.free, x, norm, torch.bfloat16), 6 * x.numel()),
        "add_rms_norm": (lambda: add_rms_norm(bed.free, x, y, None, norm, torch.bfloat16), 12 * x.numel()),
        "gated silu": (lambda: gated(bed.free, both, "silu"), 3 * both.numel()),
        "embed": (lambda: embed(bed.free, ids, table), 6 * x.numel()),
    }


def _turns(bed: Bed, tokens: int) -> Runs:
    heads, kv_heads, dim = bed.size((4, 1, 64), (32, 8, 128))
    qkv, table = bed.drawn(tokens, (heads + 2 * kv_heads) * dim), rotary_table(RotarySpec(dim=dim, theta=5e5), tokens)
    table = RotaryTable(cos=table.cos.to(bed.device), sin=table.sin.to(bed.device))
    pool = GpuKVPool(bed.drawn(1, 2, tokens // 16 + 1, kv_heads, 16, dim))
    at = torch.arange(tokens, dtype=torch.int32, device=bed.device)
    one = Norm(weight=torch.ones(dim, device=bed.device), eps=1e-6)
    plain, normed = (
        AttnIn(norm=None, qkv=None, heads=heads, kv_heads=kv_heads, head_dim=dim, head_norm=norm)
        for norm in (None, HeadNorm(q=one, k=one))
    )
    place, k = Positions(position=at, place=at), bed.drawn(tokens, kv_heads, dim)
    moved = 4 * qkv.numel() + 8 * table.cos.numel()
    return {
        "rotary, KV write": (lambda: turn_and_write(bed.free, qkv, plain, table, place, pool, 0), moved),
        "head norm, rotary, KV write": (lambda: turn_and_write(bed.free, qkv, normed, table, place, pool, 0), moved),
        "KV write": (lambda: write(bed.free, pool, 0, at, k, k), 8 * k.numel()),
    }


def sampler(bed: Bed) -> Iterator[Row]:
    """Each kind at vocabulary 128k. The ceiling reads all logits once; torch's way, which sorts, beside."""
    for count in bed.size((2,), (1, 32, 256)):
        logits = logits_of(bed, count)
        for name, run in _kinds(bed, logits).items():
            seconds = bed.seconds(run)
            share = 4 * logits.numel() / seconds / bed.copy_rate()
            yield {"rows": count, "kind": name, "us": 1e6 * seconds, "of_copy": share}


def _kinds(bed: Bed, logits: Tensor) -> dict[str, Callable[[], object]]:
    count, vocabulary = logits.shape
    every = torch.arange(count, device=bed.device)
    seen, tokens, _ = seen_of(bed, count, vocabulary)
    allowed = packed(torch.ones(count, words(vocabulary) * 32, dtype=torch.int64, device=bed.device))
    how = {
        "temperature": draws(bed, count, temperature=0.8),
        "top_k 50": draws(bed, count, top_k=50),
        "top_p 0.9": draws(bed, count, top_p=0.9),
        "min_p 0.05": draws(bed, count, min_p=0.05),
        "top_k 50, top_p 0.9, min_p 0.01": draws(bed, count, top_k=50, top_p=0.9, min_p=0.01),
    }
    drawn = {name: lambda draw=draw: sample(bed.free, logits, draw) for name, draw in how.items()}
    return {
        "greedy": lambda: greedy(bed.free, logits),
        "finite": lambda: finite(bed.free, logits),
        **drawn,
        "penalties": lambda: penalise_(bed.free, logits, every, every, seen),
        "mask": lambda: mask_(bed.free, logits, every, allowed),
        "log-softmax gather of 10": lambda: logprobs(bed.free, logits, tokens),
        "torch: top_p 0.9 by sorting": lambda: _sorted(logits),
    }


def _sorted(logits: Tensor) -> Tensor:
    """Top-p as it is written with torch's operators."""
    values, order = logits.sort(-1, descending=True)
    p = values.softmax(-1)
    kept = p.masked_fill(p.cumsum(-1) - p > 0.9, 0.0)
    noise = torch.empty_like(kept).exponential_()
    return order.gather(1, (kept / noise).argmax(-1, keepdim=True))


def lora(bed: Bed) -> Iterator[Row]:
    """Adapters of a QKV projection beside the projection itself, and beside what their weights take to read."""
    for tokens in bed.size((4,), (64, 2048)):
        for rank in bed.size((8,), (8, 16, 32, 64)):
            yield from (_adapted(bed, tokens, rank, count) for count in bed.size((2,), (1, 8, 64)))


def _adapted(bed: Bed, tokens: int, rank: int, count: int) -> Row:
    k, parts = bed.size((64, (64, 16, 16)), (4096, (4096, 1024, 1024)))
    x, weight, out = bed.drawn(tokens, k), bed.drawn(sum(parts), k), bed.drawn(tokens, sum(parts))
    stack = LoraStack.empty(parts, k, slots=count, max_rank=rank, dtype=torch.bfloat16, device=bed.device)
    for slot in range(count):
        for module, size in enumerate(parts):
            stack.put(slot, module, bed.drawn(rank, k), bed.drawn(size, rank), 0.01)
    step = lora_step(bed, np.arange(tokens) % count)
    seconds = bed.seconds(lambda: apply(bed.free, x, stack, step, out))
    base = bed.seconds(lambda: torch.nn.functional.linear(x, weight))
    moved = 2 * (stack.a.numel() + stack.b.numel() + x.numel() + 2 * out.numel())
    return {
        "tokens": tokens,
        "rank": rank,
        "adapters": count,
        "us": 1e6 * seconds,
        "projection_us": 1e6 * base,
        "of_projection": seconds / base,
        "of_copy": moved / seconds / bed.copy_rate(),
    }
