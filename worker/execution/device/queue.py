"""A device that computes steps in order, behind the host."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from worker.sampling.sending import Array

Bytes = npt.NDArray[np.uint8]
Work = Callable[[torch.Tensor], Sequence[torch.Tensor]]


class Receipt(Protocol):
    """What one `submit` will give."""

    def result(self) -> list[Array]:
        """Wait for the tensors that the work returned, on the host. Raises what failed."""


class DeviceQueue(Protocol):
    """Work is given one step at a time and done in that order."""

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""

    def settle(self) -> None:
        """Wait for what was given to the device beside the queue: weights, and state that steps find."""

    def submit(self, data: Bytes, work: Work) -> Receipt:
        """Send `data` in one copy, then do `work(data on the device, uint8 [bytes])`, then fetch what it returns in one copy. May return
        before any of it is done. `work` must not look at a tensor's values, and must not rest on anything that changes afterwards.
        """


class Shape(NamedTuple):
    """How a tensor is found again in bytes."""

    dtype: torch.dtype
    shape: torch.Size

    @property
    def bytes(self) -> int:
        """Without what fills it up."""
        return self.dtype.itemsize * self.shape.numel()


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All tensors as one, uint8 [bytes], in the given order."""
    return torch.cat([_flat(tensor).view(torch.uint8) for tensor in tensors])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All values, one apart: torch calls a single value contiguous, and then keeps whatever stride it has."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))


def parted(joint: torch.Tensor, shapes: Sequence[Shape]) -> list[Array]:
    """What `joined` joined, as arrays of their own on the host."""
    parts = torch.split(joint, [shape.bytes for shape in shapes])
    return [
        part.clone().view(shape.dtype).reshape(shape.shape).numpy() for part, shape in zip(parts, shapes, strict=True)
    ]


def shapes_of(tensors: Sequence[torch.Tensor]) -> list[Shape]:
    """For `parted`."""
    return [Shape(tensor.dtype, tensor.shape) for tensor in tensors]
