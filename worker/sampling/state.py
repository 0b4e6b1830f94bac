"""How each slot draws its tokens: set once when a sequence takes the slot, read by every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.sample.reference import Draw
from shared.types import Sampling
from worker.plan import SlotStart

_WORD = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotSampling:
    """The host's side of a slot's sampling."""

    sampling: Sampling
    prompt_len: int


class SamplingState:
    """Per-slot parameters, as columns on the device and as records on the host."""

    def __init__(self, slots: int):
        self._slots: list[SlotSampling | None] = [None] * slots
        self._floats = torch.zeros(slots, 3)  # temperature, top_p, min_p
        self._ints = torch.zeros(slots, 5, dtype=torch.int64)  # top_k, seed low, seed high, choice index, prompt_len

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot."""
        slot, sampling, prompt_len = start.slot, start.sampling, start.prompt_len
        self._slots[slot] = SlotSampling(sampling=sampling, prompt_len=prompt_len)
        seed = sampling.seed & (_WORD << 32 | _WORD)
        self._floats[slot] = torch.tensor((sampling.temperature, sampling.top_p, sampling.min_p))
        self._ints[slot] = torch.tensor((sampling.top_k, seed & _WORD, seed >> 32, start.choice_index, prompt_len))

    def of(self, slot: int) -> SlotSampling:
        """The slot's record. KeyError where no sequence ever took it."""
        found = self._slots[slot]
        if found is None:
            raise KeyError(f"slot {slot} was never started")
        return found

    def draw(self, slots: Sequence[int], positions: Sequence[int]) -> Draw:
        """Parameters of rows that sample at `positions` of `slots`."""
        rows = torch.tensor(slots, dtype=torch.int64)
        temperature, top_p, min_p = self._floats.index_select(0, rows).T.contiguous()
        top_k, low, high, choice, prompt = self._ints.index_select(0, rows).T.contiguous()
        return Draw(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed_low=low,
            seed_high=high,
            position=torch.tensor(positions, dtype=torch.int64) - prompt,
            choice=choice,
        )
