"""Reading tensors with their shapes checked, and packing them one by one so that no more than one layer exists
twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.backend import Backend
from kernels.weights import Norm, Packed
from worker.models.checkpoint import Checkpoint
from worker.models.errors import ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """float32, bfloat16 or float16 by name; ValueError otherwise."""
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is not served; served: {', '.join(_DTYPES)}")
    return _DTYPES[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """One projection's name (without .weight), its output rows, and whether it has a bias."""

    name: str
    rows: int
    bias: bool = False


class WeightReader:
    """Takes tensors out of a checkpoint in the dtype to compute in. ModelError names a missing or mis-shaped one."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, ops: Backend, *, invariant: bool):
        self._checkpoint = checkpoint
        self._ops = ops
        self._invariant = invariant
        self.dtype = dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor as stored, of exactly `shape`."""
        try:
            tensor = self._checkpoint.tensor(name)
        except KeyError:
            raise ModelError(f"the checkpoint has no tensor {name!r} (expected shape {list(shape)})") from None
        if tuple(tensor.shape) != shape:
            raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name!r} has the type {tensor.dtype}, expected floating point")
        return tensor

    def norm(self, name: str, size: int, eps: float, offset: float = 0.0) -> Norm:
        """An RMSNorm's weight, `offset` added in float32."""
        return Norm(weight=self.tensor(f"{name}.weight", (size,)).float() + offset, eps=eps)

    def matrix(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """A copy in the dtype to compute in, so that no mapped file stays open behind it."""
        return self.tensor(f"{name}.weight", shape).to(self.dtype, copy=True)

    def rounded(self, value: float) -> float:
        """A constant as the dtype to compute in holds it."""
        return torch.tensor(value, dtype=self.dtype).item()

    def packed(self, projections: Sequence[Projection], width: int) -> Packed:
        """The projections of `width` inputs, stacked in order into one."""
        return self.pack(self._stack(projections, width), self._biases(projections))

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Packed:
        """Pack a weight that is at hand."""
        return self._ops.pack(weight, bias=bias, invariant=self._invariant)

    def _stack(self, projections: Sequence[Projection], width: int) -> torch.Tensor:
        return torch.cat([self.tensor(f"{p.name}.weight", (p.rows, width)).to(self.dtype) for p in projections])

    def _biases(self, projections: Sequence[Projection]) -> torch.Tensor | None:
        if not any(p.bias for p in projections):
            return None
        return torch.cat([self._bias(p) for p in projections])

    def _bias(self, p: Projection) -> torch.Tensor:
        return (
            self.tensor(f"{p.name}.bias", (p.rows,)).to(self.dtype) if p.bias else torch.zeros(p.rows, dtype=self.dtype)
        )
