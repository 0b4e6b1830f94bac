"""What a layer does beside attention: norms, rotary and KV write, activations, embedding, products, adapters."""

from collections.abc import Iterator

import numpy as np
import torch

from kernels.attn_in.triton import Positions, turn_and_write
from kernels.embed.reference import embed as reference_embed
from kernels.embed.triton import embed
from kernels.kv.triton import GpuKVPool, write
from kernels.linear.triton import linear, linear_float32, matmul, pack
from kernels.lora.triton import LoraStack, LoraStep, apply, apply_embedding, jobs
from kernels.mlp.reference import activation
from kernels.mlp.triton import gated
from kernels.rms_norm.reference import rms_norm as reference_norm
from kernels.rms_norm.triton import add, add_rms_norm, rms_norm
from kernels.rotary.reference import rotate
from kernels.rotary.table import RotarySpec, RotaryTable, rotary_table
from kernels.weights import Activation, AttnIn, Embedding, HeadNorm, Norm
from tests.bench.gpu.bed import Bed, Row, Tensor, apart, close, same

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh")


def check(bed: Bed) -> Iterator[Row]:
    """All but attention."""
    checks = (_norms, _gated, _attn_in, _writes, _copies, _embeds, _products, _adapters, _adapted_embedding)
    yield from (row for one in checks for row in one(bed))


def _norm(bed: Bed, size: int, seed: int) -> Norm:
    return Norm(weight=bed.drawn(size, dtype=torch.float32, seed=seed) + 1, eps=1e-5)


def _norms(bed: Bed) -> Iterator[Row]:
    for width in bed.size((33,), (33, 576, 4096, 8192)):
        for number, dtype in enumerate(_DTYPES):
            x, y = bed.drawn(5, width, dtype=torch.float32), bed.drawn(5, width, dtype=dtype, seed=1)
            after, norm = (_norm(bed, width, 2) if number else None), _norm(bed, width, 3)
            want = x + (y if after is None else reference_norm(y, after))
            name, stream, added = f"{width} {str(dtype)[6:]}", apart(x), apart(x)
            got = add_rms_norm(bed.free, stream, apart(y), after, norm, dtype)
            add(bed.free, added, apart(y), after)
            yield close("add_rms_norm", name, got, reference_norm(want, norm), dtype)
            yield close("add_rms_norm: stream", name, stream, want, torch.float32)
            yield close("add", name, added, want, torch.float32)
            rows = torch.tensor([4, 0, 4], device=bed.device)
            yield close(
                "rms_norm", name, rms_norm(bed.free, stream, norm, dtype, rows), reference_norm(want[rows], norm), dtype
            )


def _gated(bed: Bed) -> Iterator[Row]:
    for act in _ACTIVATIONS:
        for dtype in _DTYPES:
            x = bed.drawn(3, 2 * 1500, dtype=dtype)
            gate, up = x.float().chunk(2, dim=-1)
            got = gated(bed.free, apart(x), act)
            yield close("gated", f"{act} {str(dtype)[6:]}", got, activation(act)(gate) * up, dtype)


def _attn_in(bed: Bed) -> Iterator[Row]:
    """Head norm, rotary and KV write in one, of head sizes 64 to 256, a part of a head turned too."""
    cases = ((64, 9, 3, 64), (80, 4, 4, 32), (96, 8, 2, 96), (128, 32, 8, 128), (256, 8, 4, 256))
    for number, (dim, heads, kv_heads, turned) in enumerate(bed.size(cases[1:3], cases)):
        for over in (None, 1, heads):
            yield from _turned(bed, (dim, heads, kv_heads, turned), over, _DTYPES[number % 3])


def _turned(bed: Bed, shape: tuple[int, int, int, int], over: int | None, dtype: torch.dtype) -> Iterator[Row]:
    dim, heads, kv_heads, turned = shape
    norm = None
    if over is not None:
        sizes = (dim, dim) if over == 1 else (heads * dim, kv_heads * dim)
        norm = HeadNorm(q=_norm(bed, sizes[0], 4), k=_norm(bed, sizes[1], 5))
    weights = AttnIn(norm=None, qkv=None, heads=heads, kv_heads=kv_heads, head_dim=dim, head_norm=norm)
    table = rotary_table(RotarySpec(dim=turned, theta=1e4), 100)
    table = RotaryTable(cos=table.cos.to(bed.device), sin=table.sin.to(bed.device))
    position = torch.tensor([99, 0, 5], dtype=torch.int32, device=bed.device)
    place = torch.tensor([70, -1, 33], dtype=torch.int32, device=bed.device)
    qkv = bed.drawn(3, (heads + 2 * kv_heads) * dim, dtype=dtype)
    pool = _poisoned(bed, kv_heads, dim, dtype)
    at = Positions(position=position, place=place)
    q = turn_and_write(bed.free, apart(qkv), weights, table, at, pool, 1)
    split = qkv.view(3, -1, dim).float()
    parts = list(torch.split(split, [heads, kv_heads, kv_heads], 1))
    if norm is not None:
        for i, one in enumerate((norm.q, norm.k)):
            parts[i] = reference_norm(parts[i].reshape(3, -1, one.weight.numel()), one).view(parts[i].shape)
    cos, sin = table.cos[position.long()], table.sin[position.long()]
    name = f"{heads}/{kv_heads} x {dim}, norm over {over}, {str(dtype)[6:]}"
    yield close("attn_in: q", name, q, rotate(parts[0], cos, sin), dtype)
    k, v = _read(pool, 1, torch.tensor([70, 33]))
    yield close("attn_in: k", name, k, rotate(parts[1], cos, sin)[[0, 2]], dtype)
    yield same("attn_in: v", name, v, parts[2][[0, 2]].to(dtype))
    yield same("attn_in: no more", name, _written(pool), torch.tensor(2 * 2 * kv_heads * dim))


def _poisoned(bed: Bed, kv_heads: int, dim: int, dtype: torch.dtype) -> GpuKVPool:
    pool = GpuKVPool.allocate(layers=2, kv_heads=kv_heads, head_dim=dim, blocks=6, dtype=dtype, device=bed.device)
    pool.fill(torch.nan)
    return pool


def _read(pool: GpuKVPool, layer: int, at: Tensor) -> tuple[Tensor, Tensor]:
    k, v = (one[at // pool.block_size, :, at % pool.block_size] for one in pool.layer(layer))
    return k, v


def _written(pool: GpuKVPool) -> Tensor:
    return sum(torch.isfinite(one).sum() for layer in range(pool.layers) for one in pool.layer(layer))  # type: ignore[return-value]


def _writes(bed: Bed) -> Iterator[Row]:
    for dim, kv_heads, dtype in ((80, 3, torch.bfloat16), (128, 8, torch.float16), (256, 2, torch.float32)):
        pool, k, v = _poisoned(bed, kv_heads, dim, dtype), *bed.drawn(2, 3, kv_heads + 2, dim)[:, :, 1:-1]
        write(bed.free, pool, 1, torch.tensor([0, -1, 31], dtype=torch.int32, device=bed.device), k, v)
        key, value = _read(pool, 1, torch.tensor([0, 31]))
        name = f"{kv_heads} x {dim} {str(dtype)[6:]}"
        yield same("kv write", name, torch.stack((key, value)), torch.stack((k, v))[:, [0, 2]].to(dtype))
        yield same("kv write: no more", name, _written(pool), torch.tensor(2 * 2 * kv_heads * dim))


def _copies(bed: Bed) -> Iterator[Row]:
    pool, other = (_poisoned(bed, 2, 64, torch.bfloat16) for _ in range(2))
    for layer in range(2):
        for one in pool.layer(layer):
            one.copy_(bed.drawn(*one.shape, seed=layer))
    before = pool.export(range(6))
    pool.copy_blocks([0, 1], [1, 0])
    yield same("kv copy", "swap", pool.export([1, 0, 2]), before[:3])
    other.import_([4, 2], pool.export([0, 1]))
    yield same("kv import", "2 of 6", other.export([4, 2]), before[[1, 0]])


def _embeds(bed: Bed) -> Iterator[Row]:
    tokens = torch.tensor([0, 49, 7, 7, 24, 25], device=bed.device)
    for dtype in _DTYPES:
        weights = Embedding(table=bed.drawn(50, 999, dtype=dtype), scale=1.5)
        want = reference_embed(tokens, weights)
        yield same("embed", str(dtype)[6:], embed(bed.free, tokens, weights), want)
        halves = [Embedding(table=weights.table[first : first + 25], scale=1.5) for first in (0, 25)]
        both = embed(bed.free, tokens, halves[0], 0) + embed(bed.free, tokens, halves[1], 25)
        yield same("embed: of two ranks", str(dtype)[6:], both, want)


def _products(bed: Bed) -> Iterator[Row]:
    """The batch-invariant product, of few rows and many, and that what it gives a row depends on no other."""
    for dtype in _DTYPES:
        n, k = bed.size((70, 96), (1000, 4096))
        weight, x = bed.drawn(n, k, dtype=dtype), apart(bed.drawn(130, k, dtype=dtype, seed=1))
        bias, name = bed.drawn(n, dtype=dtype, seed=2), str(dtype)[6:]
        want = x.double() @ weight.double().T + bias.double()
        for invariant in (False, True):
            packed = pack(bed.launch(fixed=invariant), weight, None, bias, invariant=invariant)
            kind = f"{name} {'invariant' if invariant else 'free'}"
            yield close("linear", kind, linear(bed.launch(fixed=invariant), x, packed), want, dtype)
            got = linear_float32(bed.launch(fixed=invariant), x, packed)
            yield close("linear to float32", kind, got, want, torch.float32, factor=4)
        whole = matmul(bed.fixed, x, packed, torch.float32)
        for count in (1, 65):
            part = matmul(bed.fixed, x[:count], packed, torch.float32)
            yield same("linear: a row's bits", f"{name} of {count} rows", part, whole[:count])


def lora_step(bed: Bed, slots: np.ndarray) -> LoraStep:
    """A step whose tokens have the adapters of those slots."""
    order, made, rows = jobs(slots.astype(np.int64))
    parts = (order, slots[order].astype(np.int32), made)
    sent = (torch.from_numpy(part).to(bed.device) for part in parts)
    return LoraStep(order=next(sent), slots=next(sent), jobs=next(sent), rows=rows)


def _adapters(bed: Bed) -> Iterator[Row]:
    """Ranks 8 to 64 mixed in one stack, of 1, 8 and 64 adapters; every fifth token has none."""
    dtypes = bed.size((torch.bfloat16,), _DTYPES)
    for dtype in dtypes:
        for count in bed.size((3,), (1, 8, 64)):
            yield _adapted(bed, count, dtype, bed.size(9, 200))


def _adapted(bed: Bed, count: int, dtype: torch.dtype, tokens: int) -> Row:
    k, rows = bed.size((96, (48, 16, 16)), (1024, (1024, 256, 256)))
    stack = LoraStack.empty(rows, k, slots=count, max_rank=64, dtype=dtype, device=bed.device)
    stack.a.fill_(torch.nan)
    stack.b.fill_(torch.nan)
    x, out = apart(bed.drawn(tokens, k, dtype=dtype)), apart(bed.drawn(tokens, sum(rows), dtype=dtype, seed=1))
    slots = np.where(np.arange(tokens) % 5 == 4, -1, np.arange(tokens) % count)
    change = torch.zeros(tokens, sum(rows), dtype=torch.float64, device=bed.device)
    for slot in range(count):
        own, first = torch.from_numpy(np.flatnonzero(slots == slot)).to(bed.device), 0
        for module, size in enumerate(rows):
            rank = (8, 16, 32, 64)[(slot + module) % 4]
            a, b = (bed.drawn(*shape, dtype=dtype, seed=slot) / 8 for shape in ((rank, k), (size, rank)))
            stack.put(slot, module, a, b, 0.5)
            inner = x[own].double() @ a.double().T
            change[own, first : first + size] = 0.5 * inner @ b.double().T
            first += size
    want = out.double() + change
    apply(bed.free, x, stack, lora_step(bed, slots), out)
    return close("lora", f"{count} adapters, {str(dtype)[6:]}", out, want, dtype, factor=4)


def _adapted_embedding(bed: Bed) -> Iterator[Row]:
    stack = LoraStack.empty(
        (40,), 10, slots=2, max_rank=16, dtype=torch.float32, device=bed.device, by_token=True
    )  # fmt: skip
    slots, tokens = np.array([1, -1, 0, 1]), torch.tensor([3, 3, 9, 0], device=bed.device)
    want = torch.zeros(4, 40, device=bed.device)
    for slot, rank in ((0, 16), (1, 3)):
        a, b = bed.drawn(rank, 10, dtype=torch.float32, seed=slot), bed.drawn(40, rank, dtype=torch.float32, seed=9)
        stack.put(slot, 0, a.T, b, 0.5)
        for token in np.flatnonzero(slots == slot).tolist():
            want[token] = 3.0 * 0.5 * b @ a[:, tokens[token]]
    out = torch.zeros(4, 40, device=bed.device)
    apply_embedding(bed.free, tokens, stack, lora_step(bed, slots), out, 3.0)
    yield close("lora: embedding", "2 adapters", out, want, torch.float32)
