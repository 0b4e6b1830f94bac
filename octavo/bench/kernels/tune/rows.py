"""What the tiles of all that works row by row are judged by: norms, activations, products, adapters."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from kernels.embed.triton import embed
from kernels.gpu.launch import Launcher
from kernels.linear.triton import matmul, pack
from kernels.lora.triton import LoraStack, LoraStep, apply, jobs
from kernels.mlp.triton import gated
from kernels.rms_norm.triton import add_rms_norm
from kernels.weights import Embedding, Norm
from octavo.bench.kernels.tune.inputs import drawn
from octavo.bench.kernels.tune.judge import Run, Subject
from octavo.bench.kernels.tune.sizes import Sizes


def subjects(sizes: Sizes) -> Iterator[Subject]:
    """All."""
    for name, tokens in (("few", sizes.few), ("many", sizes.many)):
        yield Subject(kernel="rms_norm", size="*", name=name, make=partial(_normed, sizes=sizes, tokens=tokens))
        yield Subject(kernel="gated", size="*", name=name, make=partial(_gated, sizes=sizes, tokens=tokens))
        yield Subject(kernel="embed", size="*", name=name, make=partial(_embedded, sizes=sizes, tokens=tokens))
    yield from _products(sizes)
    for kernel in ("lora.shrink", "lora.expand"):
        for name, parts in (("three", 3), ("one", 1)):
            few = partial(_adapted, sizes=sizes, tokens=sizes.few, slots=sizes.slots, parts=parts)
            many = partial(_adapted, sizes=sizes, tokens=sizes.most, slots=1, parts=parts)
            yield Subject(kernel=kernel, size="*", name=f"{name}, many adapters", make=few)
            yield Subject(kernel=kernel, size="64", name=f"{name}, one adapter", make=many)


def _products(sizes: Sizes) -> Iterator[Subject]:
    """Those of --deterministic: with any tile for few rows or for many a row must have the same bits."""
    for kernel, tokens in (("matmul.few", sizes.few), ("matmul.many", sizes.most)):
        for n, k in ((sizes.hidden, sizes.hidden), (sizes.hidden, sizes.inner)):
            make = partial(_product, rows=tokens, n=n, k=k, dtype=torch.bfloat16)
            yield Subject(kernel=kernel, size="*", name=f"{k} to {n}", make=make, fused=False, exact=True)
    make = partial(_product, rows=sizes.few, n=sizes.hidden, k=sizes.hidden, dtype=torch.float32)
    yield Subject(kernel="matmul.wide", size="*", name="float32", make=make, fused=False)


def _normed(launch: Launcher, *, sizes: Sizes, tokens: int) -> Run:
    x, y = drawn(launch, tokens, sizes.hidden, dtype=torch.float32), drawn(launch, tokens, sizes.hidden)
    norm = Norm(weight=torch.ones(sizes.hidden, device=launch.device), eps=1e-5)
    return lambda: add_rms_norm(launch, x, y, None, norm, torch.bfloat16)


def _gated(launch: Launcher, *, sizes: Sizes, tokens: int) -> Run:
    both = drawn(launch, tokens, 2 * sizes.inner)
    return lambda: gated(launch, both, "silu")


def _embedded(launch: Launcher, *, sizes: Sizes, tokens: int) -> Run:
    table = Embedding(table=drawn(launch, sizes.vocabulary // 8, sizes.hidden))
    ids = torch.arange(tokens, device=launch.device) * 7 % len(table.table)
    return lambda: embed(launch, ids, table)


def _product(launch: Launcher, *, rows: int, n: int, k: int, dtype: torch.dtype) -> Run:
    packed = pack(launch, drawn(launch, n, k, dtype=dtype), None, None, invariant=True)
    x = drawn(launch, rows, k, dtype=dtype)
    return lambda: matmul(launch, x, packed, dtype)


def _adapted(launch: Launcher, *, sizes: Sizes, tokens: int, slots: int, parts: int) -> Run:
    """Both kernels: the tile of one says what the other one adds up."""
    rows = (sizes.hidden, *[sizes.hidden // 4] * (parts - 1))
    stack = LoraStack.empty(
        rows, sizes.hidden, slots=slots, max_rank=sizes.rank, dtype=torch.bfloat16, device=launch.device
    )
    for slot in range(slots):
        for module, size in enumerate(rows):
            a, b = drawn(launch, sizes.rank, sizes.hidden), drawn(launch, size, sizes.rank)
            stack.put(slot, module, a, b, 0.01)
    step = _by_slot(launch, np.arange(tokens) % slots)
    x, out = drawn(launch, tokens, sizes.hidden), drawn(launch, tokens, sum(rows))

    def run() -> torch.Tensor:
        apply(launch, x, stack, step, out)
        return out

    return run


def _by_slot(launch: Launcher, own: np.ndarray[tuple[int], np.dtype[np.int64]]) -> LoraStep:
    order, made, rows = jobs(own)
    sent = (torch.from_numpy(one).to(launch.device) for one in (order, own[order].astype(np.int32), made))
    order_there, slots, jobs_there = sent
    return LoraStep(order=order_there, slots=slots, jobs=jobs_there, rows=rows)
