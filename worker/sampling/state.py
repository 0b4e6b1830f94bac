"""How each slot draws its tokens: set once when a sequence takes the slot, read by every step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.sample.reference import Draw
from shared.types import Sampling
from worker.plan import SlotStart
from worker.sampling.sending import Send, whole

_WORD = 0xFFFFFFFF
# Logits over a temperature must stay finite in float32. Beyond these a row is drawn like its limit: from the most likely alone, or evenly.
_COLDEST, _HOTTEST = 1e-20, 1e20


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotSampling:
    """A slot's sampling as it was asked for."""

    sampling: Sampling
    prompt_len: int


class SamplingState:
    """Per-slot parameters, as columns and as records."""

    def __init__(self, slots: int):
        self._slots: list[SlotSampling | None] = [None] * slots
        self._floats = np.zeros((3, slots), dtype=np.float32)  # temperature, top_p, min_p
        self._ints = np.zeros((5, slots), dtype=np.int64)  # top_k, seed low, seed high, choice index, prompt_len

    def start(self, start: SlotStart) -> None:
        """A sequence takes the slot."""
        slot, sampling, prompt_len = start.slot, start.sampling, start.prompt_len
        self._slots[slot] = SlotSampling(sampling=sampling, prompt_len=prompt_len)
        seed = sampling.seed & (_WORD << 32 | _WORD)
        temperature = min(max(sampling.temperature, _COLDEST), _HOTTEST)  # 0 is greedy, and never drawn by
        self._floats[:, slot] = (temperature, sampling.top_p, sampling.min_p)
        self._ints[:, slot] = (sampling.top_k, seed & _WORD, seed >> 32, start.choice_index, prompt_len)

    def of(self, slot: int) -> SlotSampling:
        """The slot's record. KeyError where no sequence ever took it."""
        found = self._slots[slot]
        if found is None:
            raise KeyError(f"slot {slot} was never started")
        return found

    def draw(self, slots: Sequence[int], positions: Sequence[int], send: Send) -> Callable[[], Draw]:
        """Parameters of rows that sample at `positions` of `slots`."""
        ints = self._ints.take(slots, axis=1)
        ints[4] = whole(positions) - ints[4]
        floats_sent, ints_sent = send(self._floats.take(slots, axis=1)), send(ints)

        def drawn() -> Draw:
            temperature, top_p, min_p = floats_sent()
            top_k, low, high, choice, position = ints_sent()
            return Draw(
                temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                seed_low=low, seed_high=high, position=position, choice=choice,
            )  # fmt: skip

        return drawn
