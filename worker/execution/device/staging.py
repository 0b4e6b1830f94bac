"""Gathers all that a step needs into one piece of memory."""

import numpy as np
import torch

from worker.execution.device.queue import Bytes
from worker.sampling.sending import Array, Sent

_ALIGN = 16  # bytes: decides how kernels load what begins there


class Staging:
    """`send` is a worker.sampling.sending.Send: it notes an array; `data` is all of them; once `arrive` has told where that lies, what
    `send` returned gives the arrays' tensors there.
    """

    def __init__(self) -> None:
        self._arrays: list[tuple[int, Array]] = []  # first byte, array
        self._size = 0
        self._buffer: torch.Tensor | None = None

    def send(self, array: Array) -> Sent:
        """Note an array; it must not change before `data` is taken."""
        array = np.ascontiguousarray(array)
        start, end = self._size, self._size + array.nbytes
        self._arrays.append((start, array))
        self._size = -(-end // _ALIGN) * _ALIGN
        shape, dtype = array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype
        return lambda: self._there()[start:end].view(dtype).view(shape)

    def data(self) -> Bytes:
        """A copy of everything noted, each array at a multiple of 16 bytes."""
        data = np.zeros(self._size, dtype=np.uint8)
        for start, array in self._arrays:
            data[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._arrays = []
        return data

    def arrive(self, buffer: torch.Tensor) -> None:
        """`buffer` uint8 holds `data` from now on."""
        self._buffer = buffer

    def _there(self) -> torch.Tensor:
        if self._buffer is None:
            raise RuntimeError("what was staged has not been sent yet")
        return self._buffer
