"""Mends what Triton's interpreter gets wrong about bfloat16, which it keeps as uint16 and computes with as such.

With this, bfloat16 is computed with by value: in float32, each result rounded to the nearest. Also, with numpy 2.4 and Triton 3.6, a loop
to a bound that a kernel computes. Imported once, before any kernel runs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_Handle = interpreter.TensorHandle
_Builder = interpreter.InterpreterBuilder
_CASTS = (
    "create_si_to_fp",
    "create_ui_to_fp",
    "create_fp_to_si",
    "create_fp_to_ui",
    "create_fp_ext",
    "create_fp_trunc",
)
_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def _wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrow(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _is_bf16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _by_value(handle: Any) -> Any:
    return _Handle(_wide(handle.data), tl.float32) if _is_bf16(handle) else handle


def install() -> None:
    """Replace the interpreter's methods."""
    binary, unary, cast = _Builder.binary_op, _Builder.unary_op, _Builder.cast_impl
    _Builder.binary_op = _binary(binary)
    _Builder.unary_op = lambda self, a, op: (
        _Handle(_narrow(op(_wide(a.data))), tl.bfloat16) if _is_bf16(a) else unary(self, a, op)
    )
    _Builder.cast_impl = _cast(cast)
    for name in _CASTS:
        setattr(_Builder, name, lambda self, source, dtype: self.cast_impl(source, dtype))
    to_fp = _Builder.create_fp_to_fp
    _Builder.create_fp_to_fp = lambda self, source, dtype, rounding: (
        self.cast_impl(source, dtype)
        if tl.bfloat16 in (source.dtype.scalar, dtype.scalar)
        else to_fp(self, source, dtype, rounding)
    )
    _Builder.create_dot = _dot
    _Builder.get_bf16 = lambda self, value: _Handle(_narrow(np.array([value], dtype=np.float32)), tl.bfloat16)
    _index_by_first_value()


def _binary(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, a: Any, b: Any, op: Any) -> Any:
        if not _is_bf16(a) or op in _BITS:
            return original(self, a, b, op)
        result = op(_wide(a.data), _wide(b.data))
        return _Handle(result, tl.int1) if result.dtype == bool else _Handle(_narrow(result), tl.bfloat16)

    return run


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, source: Any, dtype: Any) -> Any:
        source = source if dtype.scalar == tl.bfloat16 else _by_value(source)
        if dtype.scalar != tl.bfloat16 or _is_bf16(source):
            return original(self, source, dtype)
        return _Handle(_narrow(source.data.astype(np.float32)), tl.bfloat16)

    return run


def _dot(_self: Any, a: Any, b: Any, d: Any, _precision: Any, _imprecise: Any) -> Any:
    """A tile's product, each of whose sums runs along its own row and column: a BLAS may sum a row by its place in the tile."""
    rows = np.ascontiguousarray(_by_value(a).data, dtype=d.data.dtype)
    columns = np.ascontiguousarray(np.swapaxes(_by_value(b).data, -1, -2), dtype=d.data.dtype)
    return _Handle(np.einsum("...ik,...jk->...ij", rows, columns) + d.data, d.dtype.scalar)


def _index_by_first_value() -> None:
    patch = interpreter._patch_lang_tensor

    def run(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))

    if hasattr(getattr(interpreter, "_LangPatchScope", None), "set_attr"):
        interpreter._patch_lang_tensor = run
