"""How much of a device's memory the KV cache may take: what a full step leaves."""

import gc
from collections.abc import Callable
from typing import Protocol

import torch

from kernels.kv import BLOCK
from shared.types import Sampling
from worker.plan import Chunk, Executor, SampleRow, SlotStart, StepPlan, TableWrite

_SHARE = 0.94  # of what is free: the rest is for the driver and for memory that lies between pieces in use
_SAMPLING = Sampling(temperature=1.0, top_p=0.9, logprobs=20, repetition_penalty=1.1, max_tokens=1)


class DeviceMemory(Protocol):
    """Bytes of a device."""

    def free(self) -> int:
        """What nobody uses, this process's own cache of free memory given back before."""

    def peak(self, run: Callable[[], object]) -> int:
        """The most that `run` needed at once beyond what was in use before."""


class CudaMemory:
    """A CUDA or ROCm device's."""

    def __init__(self, device: torch.device):
        self._device = device

    def free(self) -> int:
        """See DeviceMemory."""
        gc.collect()  # what a trial left in cycles
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def peak(self, run: Callable[[], object]) -> int:
        """See DeviceMemory."""
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def profiled_budget(memory: DeviceMemory, peak: int, share: float) -> int:
    """Bytes for KV to a worker whose part of what is free is `share`. `peak` is what full steps need. It is counted twice: recordings keep
    memory of their own.
    """
    return max(0, int(memory.free() * _SHARE * share) - 2 * peak)


class FullStep:
    """As many sequences and tokens as a step may have, sampled with everything that takes memory. Blocks are 0 .. `blocks` - 1."""

    def __init__(self, *, slots: int, step_tokens: int, max_model_len: int):
        self.sequences = min(slots, step_tokens)
        self.length = max(1, min(step_tokens // self.sequences, max_model_len - 1))
        self._each = -(-(self.length + 1) // BLOCK)

    @property
    def blocks(self) -> int:
        """That all sequences take."""
        return self.sequences * self._each

    def run(self, executor: Executor) -> None:
        """The step."""
        prompt = (0,) * self.length
        slots = range(self.sequences)
        plan = StepPlan(
            step=-1,
            starts=tuple(
                SlotStart(slot=slot, tokens=prompt, prompt_len=self.length, sampling=_SAMPLING, choice_index=0)
                for slot in slots
            ),
            tables=tuple(
                TableWrite(slot, 0, tuple(range(slot * self._each, (slot + 1) * self._each))) for slot in slots
            ),
            chunks=tuple(Chunk(slot, 0, self.length) for slot in slots),
            samples=tuple(SampleRow(slot, slot, self.length) for slot in slots),
        )
        executor.execute(plan).result()
