"""What the runner is told."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerConfig:
    """`max_model_len` 0 and `kv_bytes` None choose by the model and the free memory, of which this worker's part is
    `memory_share`. `max_running` is the number of
    slots, `step_tokens` the most tokens of a step. `depth` 1 runs steps on a thread of their own, one ahead.
    `deterministic` makes a request's tokens independent of its batch, bit for bit. `backend` and `cpu_isa` as
    kernels.backend.backend takes them. `adapter_slots` is how many adapters can be used at a time (0: none at all),
    `max_adapter_rank` the largest rank of their modules. `graphs`: a GPU's decode steps are recorded and replayed.
    `torch_compile`: its projections and MLPs go through torch.compile, which needs `deterministic` off.
    """

    dtype: Dtype
    max_running: int
    step_tokens: int
    max_model_len: int = 0
    kv_bytes: int | None = None
    memory_share: float = 1.0
    threads: int
    depth: int = 0
    deterministic: bool = True
    backend: str = "auto"
    cpu_isa: str = "auto"
    adapter_slots: int = 0
    max_adapter_rank: int = 64
    graphs: bool = True
    torch_compile: bool = False
