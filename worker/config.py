"""The worker's configuration. Flags, OCTAVO_WORKER_... and YAML derive from these fields (shared/config.py).

What is `auto`, or 0 where a number is wanted, is resolved in worker/auto.py, or by the runner for what depends on free memory.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from shared.config import ByteSize

ENV_PREFIX = "OCTAVO_WORKER_"

LogLevel = Literal["debug", "info", "warning", "error"]


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """Octavo's worker: one model, its KV cache and its engine, behind gRPC for routers."""

    model: str = field(metadata=_help("a Hugging Face directory, a .gguf file, or a Hub id"))
    served_name: str = field(
        default="", metadata=_help("the model's name in the API; empty: the directory's or file's")
    )
    host: str = field(default="127.0.0.1", metadata=_help("address to listen on"))
    port: int = field(default=50061, metadata=_help("port to listen on; 0 takes a free one"))
    metrics_port: int | None = field(default=None, metadata=_help("port of /metrics; 0 takes a free one"))
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto",
        metadata=_help("of weights, KV and activations; auto: as the model is stored, no float16 on CPU"),
    )
    kv_memory: Literal["auto"] | ByteSize = field(
        default="auto", metadata=_help("for the KV cache, such as 2GiB; auto: by free memory")
    )
    memory_share: float = field(
        default=1.0, metadata=_help("of the free memory that auto counts on: 0.5 where two workers share a machine")
    )
    max_model_len: int = field(
        default=0, metadata=_help("tokens of context; 0: the model's own, or what memory allows")
    )
    max_running: int = field(default=64, metadata=_help("choices that run at a time"))
    step_tokens: int = field(default=512, metadata=_help("most tokens that a step computes"))
    target_itl_ms: Literal["auto", "off"] | float = field(
        default="auto",
        metadata=_help(
            "milliseconds that steps that decode and prefill stay under, by prediction; auto: twice what their decodes alone take, at "
            "least 25; off: prefills take what step-tokens allows"
        ),
    )
    step_sweep: Literal["auto", "always", "never"] = field(
        default="auto",
        metadata=_help("measure step times before serving, about 1 s; auto: where none of the last week are cached"),
    )
    max_waiting: int = field(default=256, metadata=_help("requests that wait, over all tenants"))
    max_waiting_per_tenant: int = field(
        default=0, metadata=_help("requests of a tenant that wait; 0: as many as in all")
    )
    prefix_cache: bool = field(default=True, metadata=_help("keep KV of finished requests for equal prefixes"))
    depth: Literal["auto", "0", "1"] = field(
        default="auto", metadata=_help("steps planned ahead; auto: 0 on a CPU; a GPU has 1 always")
    )
    deterministic: bool = field(default=True, metadata=_help("a request's tokens never depend on its batch"))
    backend: str = field(
        default="auto",
        metadata=_help(
            "which implementation of the kernels computes: cpu, reference, triton (GPUs), or auto, the fastest that runs"
        ),
    )
    gpu_graphs: bool = field(default=True, metadata=_help("record a GPU's decode steps, and replay them whole"))
    torch_compile: bool = field(
        default=False,
        metadata=_help("give a GPU's projections and MLPs to torch.compile; needs deterministic off"),
    )
    cpu_isa: str = field(
        default="auto",
        metadata=_help("instructions that the cpu kernels use: auto, amx, avx512_bf16, avx512, avx2, generic"),
    )
    threads: int = field(
        default=0,
        metadata=_help("that compute, never more than cores; 0: as many as the cores this process really gets"),
    )
    max_adapters: int = field(
        default=0,
        metadata=_help("device slots for LoRA adapters, so many different ones a step; 0: adapters are not served"),
    )
    max_adapter_rank: int = field(default=64, metadata=_help("largest rank of an adapter"))
    adapter_dir: str = field(
        default="", metadata=_help("directory of adapters, as `name` and `tenant/name`; looked at now and again")
    )
    adapter_host_bytes: ByteSize = field(default=ByteSize(2 << 30), metadata=_help("for adapters in host memory"))
    drain_seconds: float = field(default=30.0, metadata=_help("seconds that running requests get when told to stop"))
    check_integrity: bool = field(default=False, metadata=_help("check the engine's invariants whenever it is idle"))
    log_level: LogLevel = field(default="info", metadata=_help("what is logged, on stderr"))

    def __post_init__(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        _check(bool(self.model), "model must not be empty")
        _check(bool(self.host), "host must not be empty")
        _check(0 <= self.port < 1 << 16, "port must be from 0 to 65535")
        _check(self.metrics_port is None or 0 <= self.metrics_port < 1 << 16, "metrics_port must be from 0 to 65535")
        _check(
            self.metrics_port is None or not self.port or self.metrics_port != self.port,
            "metrics_port must differ from port",
        )
        _check(self.kv_memory == "auto" or self.kv_memory > 0, "kv_memory must be positive")
        _check(0 < self.memory_share <= 1, "memory_share must be above 0 and at most 1")
        _check(
            isinstance(self.target_itl_ms, str) or 0 < self.target_itl_ms < math.inf,
            "target_itl_ms must be positive and finite",
        )
        for name in ("max_running", "step_tokens", "max_waiting", "max_adapter_rank"):
            _check(getattr(self, name) >= 1, f"{name} must be at least 1")
        _check(not (self.torch_compile and self.deterministic), "torch_compile needs deterministic off")
        _check(self.adapter_host_bytes > 0, "adapter_host_bytes must be positive")
        _check(not self.adapter_dir or self.max_adapters > 0, "adapter_dir needs max_adapters of at least 1")
        for name in ("max_model_len", "max_waiting_per_tenant", "threads", "max_adapters"):
            _check(getattr(self, name) >= 0, f"{name} must not be negative")
        _check(0 <= self.drain_seconds < math.inf, "drain_seconds must be finite and not negative")
        # every running choice is due one token a step
        _check(self.step_tokens >= self.max_running, "step_tokens must be at least max_running")
