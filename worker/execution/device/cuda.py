"""The queue of a CUDA or ROCm device: one stream, pinned memory on both ways, and an event to wait for."""

from collections.abc import Sequence

import torch

from worker.execution.device.queue import Bytes, Shape, Work, joined, parted, shapes_of
from worker.sampling.sending import Array


class CudaQueue:
    """A DeviceQueue. Pinned memory comes from torch's cache, which gives none out again before the copies that use it have ended."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """See DeviceQueue."""
        return self._device

    def settle(self) -> None:
        """See DeviceQueue. The queue's stream waits for no other by itself."""
        torch.cuda.synchronize(self._device)

    def submit(self, data: Bytes, work: Work) -> "CudaReceipt":
        """See DeviceQueue. What cannot even be started raises here."""
        with torch.cuda.stream(self._stream), torch.inference_mode():
            sent = torch.from_numpy(data).pin_memory().to(self._device, non_blocking=True)
            return _fetch(work(sent))


class CudaReceipt:
    """A Receipt: `event` has passed once `pinned` is filled."""

    def __init__(self, event: torch.cuda.Event, pinned: torch.Tensor, shapes: Sequence[Shape]):
        self._event, self._pinned, self._shapes = event, pinned, shapes

    def result(self) -> list[Array]:
        """See Receipt."""
        self._event.synchronize()
        return parted(self._pinned, self._shapes)


def _fetch(tensors: Sequence[torch.Tensor]) -> CudaReceipt:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    if tensors:
        joint = joined(tensors)
        pinned = torch.empty(joint.shape, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(joint, non_blocking=True)
    else:
        pinned = torch.empty(0, dtype=torch.uint8)
    event.record()
    return CudaReceipt(event, pinned, shapes_of(tensors))
