"""The launches that the compile check covers: every kernel, with the shapes, strides and dtypes that models bring.

Tensors are small where their size is not compiled in; strides and widths are those of real models, since their divisibility decides how the
compiler loads. A case is a name, whether sums must not be fused, and what to launch.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from kernels.attention.spec import AttentionSpec
from kernels.attention.triton import attention
from kernels.attn_in.triton import Positions, turn_and_write
from kernels.embed.triton import embed
from kernels.gpu.launch import Launcher
from kernels.gpu.step import device_step, host_step
from kernels.kv.triton import GpuKVPool, write
from kernels.linear.triton import matmul, pack
from kernels.logits.triton import (
    Seen,
    Words,
    bias_,
    blank_,
    forbid_,
    forbid_endings_,
    logprobs,
    mask_,
    penalise_,
    softcap_,
    words,
)
from kernels.lora.triton import LoraStack, LoraStep, apply, apply_embedding, jobs
from kernels.mlp.triton import gated
from kernels.prepare.reference import Batch
from kernels.rms_norm.triton import add, add_rms_norm, rms_norm
from kernels.rotary.table import RotaryTable
from kernels.sample.reference import Draw
from kernels.sample.triton import finite, greedy, sample
from kernels.weights import AttnIn, Embedding, HeadNorm, Norm

Launch = Callable[[Launcher], object]
Case = tuple[str, bool, Launch]
_CPU = torch.device("cpu")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_HEADS = {64: (9, 3), 80: (32, 32), 96: (32, 8), 128: (32, 8), 256: (8, 4)}  # SmolLM2, Phi-2, Phi-3, Llama 3, Gemma 2
_DECODE = ((4095, 1),) * 2
_MIXED = ((4095, 1), (100, 40))


def cases(*, quick: bool = False) -> Iterator[Case]:
    """All, or those of one model in one dtype."""
    dims = (128,) if quick else tuple(_HEADS)
    for dim in dims:
        yield from _attention(dim, "bf16")
        yield from _attn_in(dim, "bf16")
    yield from _rows("bf16", 4096)
    yield from _products("bf16", 4096)
    yield from _lora("bf16", 4096, 64)
    yield from _vocabulary(128_256)
    if not quick:
        yield from _more()


def _more() -> Iterator[Case]:
    """Other dtypes, groups, ranks and widths."""
    for name in ("fp16", "fp32"):
        yield from _attention(128, name)
        yield from _attn_in(128, name)
        yield from _products(name, 4096)
        yield from _lora(name, 4096, 16)
    for heads in ((8, 8), (28, 4), (64, 8)):
        yield from _attention(128, "bf16", heads)
    yield from _attention(64, "bf16", (71, 1))  # Falcon-7B: more query heads of a KV head than a block has rows
    for width in (576, 2304, 8192, 1000):
        yield from _rows("bf16", width)
    yield from _rows("fp32", 4096)
    yield from _products("bf16", 1000)
    for rank in (8, 32, 128):
        yield from _lora("bf16", 4096, rank)
    yield from _vocabulary(32_003)
    yield from _vocabulary(256_000)


def _attention(dim: int, dtype: str, heads: tuple[int, int] | None = None) -> Iterator[Case]:
    heads = heads or _HEADS[dim]
    name = f"{dtype} {dim} x {heads[0]}/{heads[1]}"
    limits: dict[str, tuple[int | None, float | None]] = {"": (None, None)}
    if dim in (128, 256) and dtype == "bf16":
        limits |= {" window": (1024, None), " cap": (None, 50.0), " window cap": (1024, 50.0)}
    for limit, (window, cap) in limits.items():
        spec = AttentionSpec(heads=heads[0], kv_heads=heads[1], head_dim=dim, scale=0.1, window=window, softcap=cap)
        for fixed in (False, True):
            how = f"{name}{limit}{' fixed' if fixed else ''}"
            run = partial(_attend, spec=spec, dtype=_DTYPES[dtype], fixed=fixed)
            yield f"{how} mixed", fixed, partial(run, chunks=_MIXED)
            yield f"{how} decode", fixed, partial(run, chunks=_DECODE)
            if not fixed:
                yield f"{how} decode, many", fixed, partial(run, chunks=_DECODE * 200)


def _attend(
    launch: Launcher, *, spec: AttentionSpec, dtype: torch.dtype, fixed: bool, chunks: tuple[tuple[int, int], ...]
) -> None:
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    pool = _pool(spec.kv_heads, spec.head_dim, dtype)
    tables = torch.zeros(len(chunks), 260, dtype=torch.int64)
    host = host_step(launch, Batch(starts=starts, lengths=lengths, tables=tables), pool, (spec,), fixed=fixed)
    step = device_step(host, torch.from_numpy(host.flat()), (), fixed=fixed)
    q = torch.zeros(int(lengths.sum()), spec.heads, spec.head_dim, dtype=dtype)
    attention(launch, q, step.attention, pool, 0, spec, fixed=fixed)


def _pool(kv_heads: int, dim: int, dtype: torch.dtype) -> GpuKVPool:
    return GpuKVPool.allocate(layers=1, kv_heads=kv_heads, head_dim=dim, blocks=2, dtype=dtype, device=_CPU)


def _attn_in(dim: int, dtype: str) -> Iterator[Case]:
    heads, kv_heads = _HEADS[dim]
    name = f"{dtype} {dim} x {heads}/{kv_heads}"
    turned = dim if dim != 80 else 32  # Phi-2 turns a part of each head
    run = partial(_turn, heads=heads, kv_heads=kv_heads, dim=dim, half=turned // 2, dtype=_DTYPES[dtype])
    yield name, False, partial(run, norm=None)
    yield f"{name} head norm", False, partial(run, norm=(1, 1))
    yield f"{name} joint norm", False, partial(run, norm=(heads, kv_heads))
    yield f"{name} write", False, partial(_write, kv_heads=kv_heads, dim=dim, dtype=_DTYPES[dtype])


def _turn(
    launch: Launcher,
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    half: int,
    dtype: torch.dtype,
    norm: tuple[int, int] | None,
) -> None:
    head_norm = None
    if norm:
        q, k = (Norm(weight=torch.ones(count * dim), eps=1e-6) for count in norm)
        head_norm = HeadNorm(q=q, k=k)
    weights = AttnIn(norm=None, qkv=None, heads=heads, kv_heads=kv_heads, head_dim=dim, head_norm=head_norm)
    qkv = torch.zeros(2, (heads + 2 * kv_heads) * dim, dtype=dtype)
    at = Positions(position=torch.zeros(2, dtype=torch.int32), place=torch.zeros(2, dtype=torch.int32))
    turn = RotaryTable(cos=torch.zeros(4, half), sin=torch.zeros(4, half))
    turn_and_write(launch, qkv, weights, turn, at, _pool(kv_heads, dim, dtype), 0)


def _write(launch: Launcher, *, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    k = torch.zeros(2, kv_heads, dim, dtype=dtype)
    write(launch, _pool(kv_heads, dim, dtype), 0, torch.zeros(2, dtype=torch.int32), k, k)


def _rows(dtype: str, width: int) -> Iterator[Case]:
    kind, name = _DTYPES[dtype], f"{dtype} {width}"
    x, y = torch.zeros(2, width), torch.zeros(2, width, dtype=kind)
    norm = Norm(weight=torch.ones(width), eps=1e-6)
    yield f"{name} norm", False, lambda launch: rms_norm(launch, x, norm, kind)
    yield f"{name} add norm", False, lambda launch: add_rms_norm(launch, x, y, None, norm, kind)
    yield f"{name} after add norm", False, lambda launch: add_rms_norm(launch, x, y, norm, norm, kind)
    yield f"{name} after add", False, lambda launch: add(launch, x, y, norm)
    yield f"{name} rows", False, lambda launch: rms_norm(launch, x, norm, kind, torch.zeros(2, dtype=torch.int64))
    both = torch.zeros(2, 2 * width, dtype=kind)
    yield f"{name} silu", False, lambda launch: gated(launch, both, "silu")
    yield f"{name} gelu_tanh", False, lambda launch: gated(launch, both, "gelu_tanh")
    table = Embedding(table=torch.zeros(4, width, dtype=kind))
    yield f"{name}", False, lambda launch: embed(launch, torch.zeros(2, dtype=torch.int64), table)


def _products(dtype: str, width: int) -> Iterator[Case]:
    kind = _DTYPES[dtype]
    for rows in (1, 100):
        for bias in (None, torch.zeros(256, dtype=kind)):
            name = f"{dtype} {width} x {rows}{' bias' if bias is not None else ''}"
            yield name, True, partial(_product, rows=rows, width=width, dtype=kind, bias=bias, out=kind)
        name = f"{dtype} {width} x {rows} to fp32"
        yield name, True, partial(_product, rows=rows, width=width, dtype=kind, bias=None, out=torch.float32)


def _product(
    launch: Launcher, *, rows: int, width: int, dtype: torch.dtype, bias: torch.Tensor | None, out: torch.dtype
) -> None:
    packed = pack(launch, torch.zeros(256, width, dtype=dtype), None, bias, invariant=True)
    matmul(launch, torch.zeros(rows, width, dtype=dtype), packed, out)


def _lora(dtype: str, width: int, rank: int) -> Iterator[Case]:
    kind, name = _DTYPES[dtype], f"{dtype} {width} rank {rank}"
    for parts in ((4096,), (4096, 1024, 1024), (1024, 1024)):
        for tokens in (2, 100):
            run = partial(_adapt, parts=parts, tokens=tokens, width=width, rank=rank, dtype=kind)
            yield f"{name} x {len(parts)}, {tokens} tokens", False, run
    yield f"{name} embed", False, partial(_adapt_embedding, rank=rank, dtype=kind)


def _adapt(launch: Launcher, *, parts: tuple[int, ...], tokens: int, width: int, rank: int, dtype: torch.dtype) -> None:
    stack = LoraStack.empty(parts, width, slots=1, max_rank=rank, dtype=dtype, device=_CPU)
    out = torch.zeros(tokens, sum(parts), dtype=dtype)
    apply(launch, torch.zeros(tokens, width, dtype=dtype), stack, _by_slot(tokens), out)


def _adapt_embedding(launch: Launcher, *, rank: int, dtype: torch.dtype) -> None:
    stack = LoraStack.empty((4096,), 10, slots=1, max_rank=rank, dtype=dtype, device=_CPU, by_token=True)
    apply_embedding(launch, torch.zeros(2, dtype=torch.int64), stack, _by_slot(2), torch.zeros(2, 4096), 1.5)


def _by_slot(tokens: int) -> LoraStep:
    order, made, rows = jobs(np.zeros(tokens, dtype=np.int64))
    slots = torch.zeros(tokens, dtype=torch.int32)
    return LoraStep(order=torch.from_numpy(order), slots=slots, jobs=torch.from_numpy(made), rows=rows)


def _vocabulary(size: int) -> Iterator[Case]:
    logits, one = torch.zeros(2, size), torch.zeros(2, dtype=torch.int64)
    draw = Draw(
        temperature=torch.ones(2), top_k=one, top_p=torch.ones(2), min_p=torch.zeros(2), seed_low=one, seed_high=one,
        position=one, choice=one,
    )  # fmt: skip
    seen = Seen(
        counts=torch.zeros(1, size, dtype=torch.int32),
        prompts=torch.zeros(1, words(size), dtype=torch.int32),
        penalties=torch.zeros(1, 3),
    )
    allowed = torch.zeros(2, words(size), dtype=torch.int32)
    name = str(size)
    yield name, False, lambda launch: greedy(launch, logits)
    yield name, False, lambda launch: finite(launch, logits)
    yield name, False, lambda launch: sample(launch, logits, draw)
    yield name, False, lambda launch: softcap_(launch, logits, 30.0)
    yield name, False, lambda launch: mask_(launch, logits, one, allowed)
    yield name, False, lambda launch: mask_(launch, logits, one, allowed, one)
    yield name, False, lambda launch: blank_(launch, logits, torch.ones(2, dtype=torch.bool))
    yield name, False, lambda launch: forbid_(launch, logits, one, one)
    ends = Words(
        rows=one, tokens=one, beginnings=torch.zeros(2, 3, dtype=torch.int32), slots=one, prompts=one, ends=one
    )
    yield name, False, lambda launch: forbid_endings_(launch, logits, ends, torch.zeros(2, 4097, dtype=torch.int64))
    yield name, False, lambda launch: penalise_(launch, logits, one, one, seen)
    yield name, False, lambda launch: bias_(launch, logits, one, one, torch.zeros(2))
    yield name, False, lambda launch: logprobs(launch, logits, torch.zeros(2, 21, dtype=torch.int64))
