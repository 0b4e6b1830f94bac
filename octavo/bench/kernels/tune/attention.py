"""What attention's tiles, and those of what lies before it, are judged by."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from kernels.attention.spec import AttentionSpec
from kernels.attention.triton import attention
from kernels.attn_in.triton import Positions, turn_and_write
from kernels.gpu.launch import Launcher
from kernels.gpu.step import device_step, host_step
from kernels.kv import BLOCK
from kernels.kv.triton import GpuKVPool
from kernels.prepare.reference import Batch
from kernels.rotary.table import RotarySpec, RotaryTable, rotary_table
from kernels.weights import AttnIn, HeadNorm, Norm
from octavo.bench.kernels.tune.inputs import drawn
from octavo.bench.kernels.tune.judge import Run, Subject
from octavo.bench.kernels.tune.sizes import Sizes

Chunks = tuple[tuple[int, int], ...]  # first position, tokens


def subjects(sizes: Sizes) -> Iterator[Subject]:
    """Of each kind of attention: its steps, plain and with a window and a soft cap."""
    decode = ((sizes.context - 1, 1),) * sizes.batch
    alone = decode[:1]
    whole = ((0, sizes.prompt),)
    late = ((sizes.context - sizes.few, sizes.few), (0, sizes.prompt // 4))
    mixed = decode[: sizes.batch // 4] + late
    steps: dict[str, dict[str, Chunks]] = {
        "attention": {"a prompt": whole, "mixed": mixed},
        "attention.decode": {"decode": decode, "decode of one": alone},
        "attention.fixed": {"mixed": mixed, "decode": decode, "decode of one": alone},
    }
    for kernel, named in steps.items():
        for size in sizes.dims:
            for name, chunks in named.items():
                yield _subject(kernel, size, name, sizes, chunks)
            yield _subject(kernel, size, "window, soft cap", sizes, next(iter(named.values())), limited=True)
        for size in ("*", "256"):  # of float32 there are two sizes
            yield _subject(f"{kernel}.wide", size, "float32", sizes, alone if "decode" in kernel else late)
    yield _merge(sizes, alone)


def _subject(kernel: str, size: str, name: str, sizes: Sizes, chunks: Chunks, *, limited: bool = False) -> Subject:
    fixed = ".fixed" in kernel
    make = partial(
        _attend, sizes=sizes, dim=sizes.dims[size], chunks=chunks, fixed=fixed, limited=limited,
        dtype=torch.float32 if kernel.endswith(".wide") else torch.bfloat16,
    )  # fmt: skip
    return Subject(kernel=kernel, size=size, name=name, make=make, fused=not fixed)


def _merge(sizes: Sizes, chunks: Chunks) -> Subject:
    make = partial(
        _attend, sizes=sizes, dim=sizes.dims["128"], chunks=chunks, fixed=False, limited=False, dtype=torch.bfloat16
    )
    return Subject(kernel="attention.merge", size="*", name="decode of one", make=make)


def _attend(
    launch: Launcher, *, sizes: Sizes, dim: int, chunks: Chunks, fixed: bool, limited: bool, dtype: torch.dtype
) -> Run:
    spec = AttentionSpec(
        heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=dim, scale=dim**-0.5,
        window=sizes.context // 4 if limited else None, softcap=50.0 if limited else None,
    )  # fmt: skip
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    width = -(-int((starts + lengths).max()) // BLOCK)
    tables = torch.randperm(width * len(chunks), generator=torch.Generator().manual_seed(1)).view(len(chunks), width)
    pool = GpuKVPool(drawn(launch, 1, 2, tables.numel(), spec.kv_heads, BLOCK, dim, dtype=dtype))
    host = host_step(launch, Batch(starts=starts, lengths=lengths, tables=tables), pool, (spec,), fixed=fixed)
    step = device_step(host, torch.from_numpy(host.flat()).to(launch.device), (), fixed=fixed)
    q = drawn(launch, int(lengths.sum()), spec.heads, dim, dtype=dtype)
    return lambda: attention(launch, q, step.attention, pool, 0, spec, fixed=fixed)


def turns(sizes: Sizes) -> Iterator[Subject]:
    """Of the launch between the product and attention, without a norm and with each kind."""
    for size, dim in sizes.dims.items():
        for name, norm in (("plain", None), ("head norm", (1, 1)), ("joint norm", (sizes.heads, sizes.kv_heads))):
            make = partial(_turn, sizes=sizes, dim=dim, norm=norm)
            yield Subject(kernel="qkv", size=size, name=name, make=make)


def _turn(launch: Launcher, *, sizes: Sizes, dim: int, norm: tuple[int, int] | None) -> Run:
    head_norm = None
    if norm is not None:
        q, k = (Norm(weight=torch.ones(count * dim, device=launch.device), eps=1e-6) for count in norm)
        head_norm = HeadNorm(q=q, k=k)
    weights = AttnIn(norm=None, qkv=None, heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=dim, head_norm=head_norm)
    table = rotary_table(RotarySpec(dim=dim, theta=5e5), sizes.many)
    turn = RotaryTable(cos=table.cos.to(launch.device), sin=table.sin.to(launch.device))
    pool = GpuKVPool(drawn(launch, 1, 2, sizes.many // BLOCK + 1, sizes.kv_heads, BLOCK, dim))
    at = torch.arange(sizes.many, dtype=torch.int32, device=launch.device)
    qkv = drawn(launch, sizes.many, (sizes.heads + 2 * sizes.kv_heads) * dim)
    return lambda: turn_and_write(launch, qkv, weights, turn, Positions(position=at, place=at), pool, 0)
