"""What the runner is told."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerConfig:
    """`max_model_len` 0 and `kv_bytes` None choose by the model and the free memory. `max_running` is the number of
    slots, `step_tokens` the most tokens of a step. `depth` 1 runs steps on a thread of their own, one ahead.
    `deterministic` makes a request's tokens independent of its batch, bit for bit.
    """

    dtype: Dtype
    max_running: int
    step_tokens: int
    max_model_len: int = 0
    kv_bytes: int | None = None
    threads: int
    depth: int = 0
    deterministic: bool = True
    backend: str = "reference"
