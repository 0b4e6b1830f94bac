"""The least time that a machine needs for a workload: what its memory and its arithmetic allow, and nothing else.

Prefill is counted as arithmetic alone: 2 FLOP a weight and prompt token, the head for one row a prompt. Each decode step reads every
weight once, or computes 2 FLOP a weight and row, whichever takes longer. All requests are admitted at once; attention, activations,
sampling and everything between steps are free. A share of 1 is therefore out of reach, and comparable from machine to machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.bench.workload import Item


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Weights that every token is multiplied with (`body`), those only for sampled rows (`head`), and bytes of one weight."""

    body: int
    head: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        """That a step reads."""
        return (self.body + self.head) * self.itemsize

    def flop(self, tokens: int, rows: int) -> int:
        """Of `tokens` through the layers, and `rows` of them through the head."""
        return 2 * (self.body * tokens + self.head * rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of the machine: bytes read from memory a second, FLOP a second of a large product and of one with 64 rows and a packed weight."""

    read: float
    large: float
    packed: float

    @property
    def prefill(self) -> float:
        """FLOP a second where there are many rows."""
        return max(self.large, self.packed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one step of the engine did. `tokens` computed, `rows` sampled; `seconds` from its planning to its result."""

    tokens: int
    rows: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Seconds at least, and of how many decode steps the memory sets the pace."""

    prefill_s: float
    decode_s: float
    decode_steps: int
    bound_by_memory: int

    @property
    def seconds(self) -> float:
        """In all."""
        return self.prefill_s + self.decode_s


def batches(items: Iterable[Item]) -> list[int]:
    """The sizes of the decode steps when all run from the start: the first token comes with the prefill, each other one takes a step."""
    outputs = [item.output_tokens for item in items]
    return [sum(count > step for count in outputs) for step in range(1, max(outputs, default=0))]


def of_workload(items: Sequence[Item], size: ModelSize, limits: Limits) -> Bound:
    """Prefill FLOP / rate + the sum over decode steps of max(weight bytes / read rate, FLOP / packed rate)."""
    prompt = sum(len(item.prompt) for item in items)
    memory = size.nbytes / limits.read
    arithmetic = [size.flop(rows, rows) / limits.packed for rows in batches(items)]
    return Bound(
        prefill_s=size.flop(prompt, len(items)) / limits.prefill,
        decode_s=sum(max(memory, seconds) for seconds in arithmetic),
        decode_steps=len(arithmetic),
        bound_by_memory=sum(memory > seconds for seconds in arithmetic),
    )


def of_steps(steps: Iterable[Step], size: ModelSize, limits: Limits) -> float:
    """The same for steps as they were really cut: seconds, each the larger of one reading of the weights and its arithmetic."""
    memory = size.nbytes / limits.read
    return sum(max(memory, size.flop(step.tokens, step.rows) / limits.prefill) for step in steps)


def decode_tokens_per_s(size: ModelSize, limits: Limits) -> float:
    """Of one stream: every token reads every weight."""
    return limits.read / size.nbytes
