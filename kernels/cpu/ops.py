"""The ops of the compiled backend. Contracts are the references'; here the residual stream is changed in place."""

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.attention.spec import AttentionSpec
from kernels.cpu import abi
from kernels.cpu.engine import Engine
from kernels.cpu.isa import PAIRED
from kernels.kv.cpu import CpuKVPool
from kernels.lora.cpu import CpuSlots, installed
from kernels.lora.weights import LoraShapes
from kernels.prepare.reference import Batch
from kernels.prepare.staged import staged_by
from kernels.rotary.table import RotaryTable
from kernels.sample.reference import Draw
from kernels.weights import AttnIn, AttnOut, Embedding, Head, Layer, Mlp

Tensor = torch.Tensor
_ALIGN = 32
_LINE = 64  # bytes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class CpuStep:
    """A step as the compiled ops know it: `handle` points at what prepare/cpu.h calls Step. The rest keeps memory."""

    handle: int
    tokens: int
    rotaries: ctypes.Array[abi.RotaryStruct]
    adapted: int | None  # prepare/cpu.h's Adapted, of the step
    kept: tuple[Any, ...]


class CpuOps:
    """One engine's ops, and the structures of the weights they were called with (kept as long as this is)."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._lib = engine.lib
        self._structs: dict[int, tuple[Any, Any]] = {}
        self._buffers: dict[str, Tensor] = {}
        self.device = torch.device("cpu")
        self.stage = staged_by(self.prepare)

    def pack(
        self, weight: Tensor, quantisation: str | None = None, bias: Tensor | None = None, *, invariant: bool = True
    ) -> abi.CpuLinear:
        """See kernels.linear.pack; every row's result is independent of the others in any case."""
        del invariant
        if quantisation is not None:
            raise ValueError(f"quantisation {quantisation!r} is not served; served: none")
        n, k = weight.shape
        source = weight.contiguous()
        data = self._engine.memory(_up(n) * _up(k) * weight.dtype.itemsize)
        kind = abi.DTYPES[weight.dtype]
        self._lib.octavo_pack(self._engine.handle, source.data_ptr(), n, k, kind, data.data_ptr())
        wide = None if bias is None else torch.nn.functional.pad(bias.float(), (0, _up(n) - n)).contiguous()
        struct = abi.LinearStruct(data.data_ptr(), None if wide is None else wide.data_ptr(), n, k, kind)
        return abi.CpuLinear(n=n, k=k, dtype=weight.dtype, data=data, bias=wide, struct=struct)

    def linear(self, x: Tensor, w: abi.CpuLinear) -> Tensor:
        """x float32 [rows, k] -> float32 [rows, n]: the product alone (for tests and benchmarks)."""
        out = torch.empty(x.shape[0], _up(w.n))
        x = x.float().contiguous()
        self._lib.octavo_linear(self._engine.handle, x.data_ptr(), x.shape[0], ctypes.byref(w.struct), out.data_ptr())
        return out[:, : w.n]

    def kv_pool(self, *, layers: int, kv_heads: int, head_dim: int, blocks: int, dtype: torch.dtype) -> CpuKVPool:
        """A pool of `blocks` blocks."""
        return CpuKVPool(self._engine, layers=layers, kv_heads=kv_heads, head_dim=head_dim, blocks=blocks, dtype=dtype)

    def kv_write(self, layer: int, k: Tensor, v: Tensor, step: CpuStep, pool: CpuKVPool) -> None:
        """k and v float32 [tokens, kv_heads, head_dim] to the places of the step's tokens."""
        k, v = k.float().contiguous(), v.float().contiguous()
        self._lib.octavo_kv_write(k.data_ptr(), v.data_ptr(), step.handle, ctypes.byref(pool.struct), layer)

    def prepare(
        self, batch: Batch, pool: CpuKVPool, rotaries: tuple[RotaryTable, ...], specs: tuple[AttentionSpec, ...]
    ) -> CpuStep:
        """Positions must lie inside the rotary tables and inside the block tables."""
        del specs
        starts, lengths = np.ascontiguousarray(batch.starts), np.ascontiguousarray(batch.lengths)
        tables = batch.tables.contiguous()
        pool.pages.reached(int(tables.max()))
        handle = self._lib.octavo_step_new(
            starts.ctypes.data, lengths.ctypes.data, tables.data_ptr(), tables.shape[1], len(starts)
        )
        turns = (abi.RotaryStruct * len(rotaries))(
            *(abi.RotaryStruct(r.cos.data_ptr(), r.sin.data_ptr(), r.cos.shape[1]) for r in rotaries)
        )
        held = installed(batch.adapters)
        if held is not None:
            self._lib.octavo_step_adapters(handle, held.addresses.ctypes.data)
        step = CpuStep(
            handle=handle,
            tokens=int(lengths.sum()),
            rotaries=turns,
            adapted=None if held is None else self._lib.octavo_step_adapted(handle),
            kept=(tables, rotaries, held),
        )
        weakref.finalize(step, self._lib.octavo_step_free, handle)
        return step

    def adapter_slots(self, shapes: LoraShapes, *, slots: int, max_rank: int, dtype: torch.dtype) -> CpuSlots:
        """Places for adapters."""
        return CpuSlots(self._engine, shapes, slots=slots, max_rank=max_rank, dtype=dtype)

    def embed(self, tokens: Tensor, weights: Embedding, step: CpuStep | None = None) -> Tensor:
        """tokens int64 [tokens] -> float32 [tokens, hidden], valid until the next call."""
        table, tokens = weights.table, tokens.contiguous()
        out = self._buffer("stream", tokens.shape[0], table.shape[1])
        kind = abi.DTYPES[table.dtype]
        self._lib.octavo_embed(
            tokens.data_ptr(), tokens.shape[0], table.data_ptr(), kind, table.shape[1], weights.scale, out.data_ptr()
        )
        if step is not None and step.adapted is not None:
            self._lib.octavo_embed_adapted(
                self._engine.handle,
                tokens.data_ptr(),
                kind,
                table.shape[1],
                weights.scale,
                step.adapted,
                out.data_ptr(),
            )
        return out

    def attn_in(self, x: Tensor, weights: AttnIn, step: CpuStep, pool: CpuKVPool, layer: int) -> Tensor:
        """x float32 [tokens, hidden] -> rotated queries, float32 [tokens, heads, head_dim]."""
        q = torch.empty(step.tokens, weights.heads, weights.head_dim)
        self._lib.octavo_attn_in(
            self._engine.handle, x.data_ptr(), self._struct(weights, abi.attn_in_struct), step.handle,
            ctypes.byref(pool.struct), ctypes.byref(step.rotaries[weights.rotary]), layer, q.data_ptr(),
        )  # fmt: skip
        return q

    def attention(self, q: Tensor, step: CpuStep, pool: CpuKVPool, layer: int, spec: AttentionSpec) -> Tensor:
        """q float32 [tokens, heads, head_dim] -> [tokens, heads * head_dim], a view of the rows that `attn_out` takes."""
        width = spec.heads * spec.head_dim
        dtype = self._product_type(pool.struct.dtype)
        stride = _stride(width, dtype.itemsize)
        out = torch.empty(step.tokens + _ALIGN, stride, dtype=dtype)
        code = self._lib.octavo_attention(
            self._engine.handle, q.data_ptr(), step.handle, ctypes.byref(pool.struct), layer,
            self._struct(spec, abi.attention_struct), out.data_ptr(), stride,
        )  # fmt: skip
        if code:
            raise ValueError("a sequence is longer than attention's splits can cover")
        return out[: step.tokens, :width]

    def attn_out(
        self, x: Tensor, attended: Tensor, weights: AttnOut, step: CpuStep | None = None, layer: int = 0
    ) -> Tensor:
        """x float32 [tokens, hidden] + proj(attended), in place."""
        self._lib.octavo_attn_out(
            self._engine.handle, x.data_ptr(), attended.data_ptr(), attended.stride(0), x.shape[0],
            self._struct(weights, abi.attn_out_struct), _adapted(step), layer,
        )  # fmt: skip
        return x

    def mlp(self, x: Tensor, weights: Mlp, step: CpuStep | None = None, layer: int = 0) -> Tensor:
        """x float32 [tokens, hidden], in place."""
        struct = self._struct(weights, abi.mlp_struct)
        self._lib.octavo_mlp(self._engine.handle, x.data_ptr(), x.shape[0], struct, _adapted(step), layer)
        return x

    def layers(self, x: Tensor, layers: tuple[Layer, ...], step: CpuStep, pool: CpuKVPool) -> Tensor:
        """x float32 [tokens, hidden] through all layers, in place, in one call."""
        widths = [one.attention.heads * one.attention.head_dim for one in layers]
        itemsize = self._product_type(pool.struct.dtype).itemsize
        strides = [_stride(width, itemsize) for width in widths]
        q = self._buffer("queries", step.tokens, max(widths))
        attended = self._buffer("attended", step.tokens + _ALIGN, max(strides))
        code = self._lib.octavo_layers(
            self._engine.handle, x.data_ptr(), self._struct(layers, abi.layer_structs), len(layers), step.handle,
            ctypes.byref(pool.struct), step.rotaries, (ctypes.c_int64 * len(layers))(*strides), q.data_ptr(),
            attended.data_ptr(),
        )  # fmt: skip
        if code:
            raise ValueError("a sequence is longer than attention's splits can cover")
        return x

    def logits(self, x: Tensor, rows: Tensor, weights: Head, step: CpuStep | None = None) -> Tensor:
        """x float32 [tokens, hidden], rows int64 [rows] -> float32 [rows, vocabulary], valid until the next call."""
        out = self._buffer("logits", rows.shape[0], weights.proj.n)
        self._lib.octavo_logits(
            self._engine.handle, x.data_ptr(), rows.contiguous().data_ptr(), rows.shape[0],
            self._struct(weights, abi.head_struct), _adapted(step), out.data_ptr(),
        )  # fmt: skip
        return out

    def greedy(self, logits: Tensor) -> Tensor:
        """logits float32 [rows, vocabulary] -> int64 [rows]: the most likely token, the lowest of equals."""
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        self._rows("octavo_greedy", logits, out)
        return out

    def finite(self, logits: Tensor) -> Tensor:
        """logits float32 [rows, vocabulary] -> bool [rows]: whether a row holds neither a NaN nor an infinity."""
        out = torch.empty(logits.shape[0], dtype=torch.bool)
        self._rows("octavo_finite", logits, out)
        return out

    def sample(self, logits: Tensor, draw: Draw) -> Tensor:
        """logits float32 [rows, vocabulary] (finite, or -inf for what is forbidden) -> int64 [rows]."""
        logits = logits.contiguous()
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        columns = [getattr(draw, field[0]).contiguous() for field in abi.DrawStruct._fields_]
        struct = abi.DrawStruct(*(column.data_ptr() for column in columns))
        self._lib.octavo_sample(
            self._engine.handle, logits.data_ptr(), *logits.shape, ctypes.byref(struct), out.data_ptr()
        )
        return out

    def _rows(self, name: str, logits: Tensor, out: Tensor) -> None:
        logits = logits.contiguous()
        getattr(self._lib, name)(self._engine.handle, logits.data_ptr(), *logits.shape, out.data_ptr())

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        """float32 [rows, width], uninitialised: memory that stays, since the system clears every page it gives."""
        held = self._buffers.get(name)
        if held is None or held.numel() < rows * width:
            held = self._buffers[name] = self._engine.memory(4 * rows * width).view(torch.float32)
        return held[: rows * width].view(rows, width)

    def _product_type(self, dtype: int) -> torch.dtype:
        """In what type rows enter products with weights of `dtype`: products of pairs take bfloat16."""
        paired = self._engine.level in PAIRED and dtype == abi.DTYPES[torch.bfloat16]
        return torch.bfloat16 if paired else torch.float32

    def _struct(self, weights: Any, make: Callable[[Any], Any]) -> Any:
        found = self._structs.get(id(weights))
        if found is None:
            found = self._structs[id(weights)] = (weights, make(weights))
        return ctypes.byref(found[1])


def _adapted(step: CpuStep | None) -> int | None:
    return None if step is None else step.adapted


def _up(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


def _stride(width: int, itemsize: int) -> int:
    """Elements from one row to the next, as linear/cpu.h's row_stride."""
    line = _LINE // itemsize
    return (_up(width) // line | 1) * line
