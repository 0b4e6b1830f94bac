"""The structures of abi.h, field by field, and how the ops' weights become them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention.spec import AttentionSpec
from kernels.weights import AttnIn, AttnOut, Head, Layer, Mlp, Norm

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


class LinearStruct(ctypes.Structure):
    """OctavoLinear."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("weight", "bias")] + [
        (name, ctypes.c_int64) for name in ("n", "k", "dtype")
    ]


class NormStruct(ctypes.Structure):
    """OctavoNorm."""

    _fields_ = [("weight", ctypes.c_void_p), ("size", ctypes.c_int64), ("eps", ctypes.c_double)]


class AttnInStruct(ctypes.Structure):
    """OctavoAttnIn."""

    _fields_ = [
        ("norm", NormStruct),
        ("qkv", LinearStruct),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("q_norm", NormStruct),
        ("k_norm", NormStruct),
        ("rotary", ctypes.c_int64),
    ]


class AttentionStruct(ctypes.Structure):
    """OctavoAttention."""

    _fields_ = [
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    ]


class AttnOutStruct(ctypes.Structure):
    """OctavoAttnOut."""

    _fields_ = [("proj", LinearStruct), ("after", NormStruct)]


class MlpStruct(ctypes.Structure):
    """OctavoMlp."""

    _fields_ = [
        ("norm", NormStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("after", NormStruct),
        ("activation", ctypes.c_int64),
    ]


class HeadStruct(ctypes.Structure):
    """OctavoHead."""

    _fields_ = [("norm", NormStruct), ("proj", LinearStruct), ("softcap", ctypes.c_double)]


class LoraStruct(ctypes.Structure):
    """OctavoLora."""

    _fields_ = [
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("scale", ctypes.c_double),
    ]


class AdapterStruct(ctypes.Structure):
    """OctavoAdapter."""

    _fields_ = [("modules", ctypes.c_void_p), ("layers", ctypes.c_int64), ("rank", ctypes.c_int64)]


class LayerStruct(ctypes.Structure):
    """OctavoLayer."""

    _fields_ = [
        ("attn_in", AttnInStruct),
        ("attention", AttentionStruct),
        ("attn_out", AttnOutStruct),
        ("mlp", MlpStruct),
    ]


class DrawStruct(ctypes.Structure):
    """OctavoDraw (sample/cpu.cpp)."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("temperature", "top_p", "min_p", "top_k", "seed_low", "seed_high", "position", "choice")
    ]


class PoolStruct(ctypes.Structure):
    """OctavoPool."""

    _fields_ = [("data", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("layers", "kv_heads", "head_dim", "blocks", "dtype")
    ]


class RotaryStruct(ctypes.Structure):
    """OctavoRotary."""

    _fields_ = [("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p), ("half", ctypes.c_int64)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuLinear:
    """A weight [n, k] packed as linear/cpu.h says. `data` and `bias` keep the memory that `struct` points at."""

    n: int
    k: int
    dtype: torch.dtype
    data: torch.Tensor
    bias: torch.Tensor | None
    struct: LinearStruct

    @property
    def nbytes(self) -> int:
        """Bytes of the weight without the padding of its layout."""
        return self.n * self.k * self.dtype.itemsize


def linear_struct(w: Any) -> LinearStruct:
    """The structure of a weight that this backend packed. TypeError for another backend's."""
    if not isinstance(w, CpuLinear):
        raise TypeError(f"a weight packed for another backend: {type(w).__name__}")
    return w.struct


def norm_struct(norm: Norm | None) -> NormStruct:
    """A null weight where there is no norm."""
    if norm is None:
        return NormStruct(None, 0, 0.0)
    return NormStruct(norm.weight.data_ptr(), norm.weight.numel(), norm.eps)


def attn_in_struct(w: AttnIn) -> AttnInStruct:
    """Keep `w` alive as long as the structure."""
    heads = w.head_norm
    return AttnInStruct(
        norm_struct(w.norm),
        linear_struct(w.qkv),
        w.heads,
        w.kv_heads,
        w.head_dim,
        norm_struct(heads.q if heads else None),
        norm_struct(heads.k if heads else None),
        w.rotary,
    )


def attention_struct(spec: AttentionSpec) -> AttentionStruct:
    """Zero where there is no window, no cap."""
    return AttentionStruct(spec.heads, spec.kv_heads, spec.head_dim, spec.window or 0, spec.scale, spec.softcap or 0.0)


def attn_out_struct(w: AttnOut) -> AttnOutStruct:
    """Keep `w` alive as long as the structure."""
    return AttnOutStruct(linear_struct(w.proj), norm_struct(w.after))


def mlp_struct(w: Mlp) -> MlpStruct:
    """Keep `w` alive as long as the structure."""
    return MlpStruct(
        norm_struct(w.norm),
        linear_struct(w.gate_up),
        linear_struct(w.down),
        norm_struct(w.after),
        _ACTIVATIONS[w.activation],
    )


def head_struct(w: Head) -> HeadStruct:
    """Keep `w` alive as long as the structure."""
    return HeadStruct(norm_struct(w.norm), linear_struct(w.proj), w.softcap or 0.0)


def layer_structs(layers: Sequence[Layer]) -> ctypes.Array[LayerStruct]:
    """Keep `layers` alive as long as the structures."""
    return (LayerStruct * len(layers))(
        *(
            LayerStruct(
                attn_in_struct(layer.attn_in),
                attention_struct(layer.attention),
                attn_out_struct(layer.attn_out),
                mlp_struct(layer.mlp),
            )
            for layer in layers
        )
    )
