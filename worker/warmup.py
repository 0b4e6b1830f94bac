"""One full step before the worker serves: memory is touched, kernels are chosen, and its time is what a step may take on this machine."""

import time

from shared.hashing import BLOCK_SIZE
from shared.types import Sampling
from worker.plan import Chunk, Executor, SampleRow, SlotStart, StepPlan, TableWrite


def warm_up(executor: Executor, tokens: int) -> float:
    """Seconds of a prefill of `tokens` in slot 0 and the first blocks; the first sequences that start there overwrite it."""
    blocks = tuple(range(-(-tokens // BLOCK_SIZE)))
    sampling = Sampling(temperature=0.0, max_tokens=1)
    plan = StepPlan(
        step=-1,
        starts=(SlotStart(slot=0, tokens=(0,) * tokens, prompt_len=tokens, sampling=sampling, choice_index=0),),
        tables=(TableWrite(slot=0, first=0, blocks=blocks),),
        chunks=(Chunk(slot=0, start=0, length=tokens),),
        samples=(SampleRow(chunk=0, slot=0, position=tokens),),
    )
    began = time.monotonic()
    executor.execute(plan).result()
    return time.monotonic() - began
