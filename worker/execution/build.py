"""From a checkpoint and a configuration to a runner."""

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from kernels.backend import Backend, backend
from kernels.lora.slots import AdapterSlots
from kernels.rotary.table import regime, rotary_table
from worker.execution.config import RunnerConfig
from worker.execution.device.cuda import CudaQueue
from worker.execution.device.graphs import CudaGraphs, Graphs
from worker.execution.device.memory import CudaMemory, DeviceMemory, FullStep, profiled_budget
from worker.execution.device.queue import DeviceQueue
from worker.execution.device.runner import DeviceRunner
from worker.execution.device.slots import DeviceSlots
from worker.execution.memory import InsufficientMemory, KvSize, auto_budget, check_fits, check_slots, size_kv
from worker.execution.numerics import numerics_id
from worker.execution.runner import ModelRunner
from worker.execution.state import SlotState
from worker.layers.weights import torch_dtype
from worker.models.checkpoint import Checkpoint
from worker.models.decoder import Decoder, Progress, load, silent
from worker.models.errors import ModelError
from worker.models.spec import DecoderSpec, lora_shapes
from worker.plan import Executor
from worker.sampling.sampler import Sampler
from worker.sampling.state import SamplingState

__all__ = ["Device", "InsufficientMemory", "ModelError", "ModelRunner", "Runner", "RunnerConfig", "build"]

_LOG = logging.getLogger("octavo.worker")


class Runner(Executor, Protocol):
    """An executor, and what it tells of itself: ModelRunner on the host, DeviceRunner on a device behind it."""

    adapters: AdapterSlots | None
    max_model_len: int
    kv_bytes: int
    numerics_id: str

    @property
    def num_blocks(self) -> int:
        """KV blocks."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""

    def close(self) -> None:
        """End what it started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What computes behind the host; `graphs` None: nothing is recorded; `memory` None: KV is sized by the host's memory."""

    queue: DeviceQueue
    graphs: Graphs | None
    memory: DeviceMemory | None = None


class _Parts(NamedTuple):
    """What a runner is made of, but for its KV cache."""

    checkpoint: Checkpoint
    config: RunnerConfig
    ops: Backend
    model: Decoder
    device: Device | None


def build(
    checkpoint: Checkpoint, config: RunnerConfig, progress: Progress = silent, device: Device | None = None
) -> Runner:
    """Load the model, size and allocate the KV cache. `progress(done, total)` counts layers. `device` is the backend's own unless given.

    Raises ModelError (what is wrong with the checkpoint or does not fit it), InsufficientMemory, and kernels.errors.NoBackend.
    """
    torch.set_num_threads(config.threads)
    ops = backend(
        config.backend,
        threads=config.threads,
        isa=config.cpu_isa,
        deterministic=config.deterministic,
        torch_compile=config.torch_compile,
    )
    _LOG.info("kernels: %s (%s)", ops.name, ops.numerics)
    with torch.inference_mode():
        model = load(checkpoint, torch_dtype(config.dtype), ops, invariant=config.deterministic, progress=progress)
        parts = _Parts(checkpoint, config, ops, model, device or _device(config, ops))
        return _assemble(parts, _size(parts))


def _device(config: RunnerConfig, ops: Backend) -> Device | None:
    if ops.device.type == "cpu":
        return None
    return Device(
        queue=CudaQueue(ops.device), graphs=CudaGraphs() if config.graphs else None, memory=CudaMemory(ops.device)
    )


def _assemble(parts: _Parts, size: KvSize) -> Runner:
    checkpoint, config, ops, model, device = parts
    length = size.max_model_len
    shared: dict[str, Any] = {
        "model": model,
        "ops": ops,
        "pool": ops.kv_pool(**_kv_shape(model.spec, config), blocks=size.blocks + (device is not None)),
        "rotaries": tuple(rotary_table(one, length + 1, length) for one in model.spec.rotaries),
        "max_model_len": length,
        "kv_bytes": size.bytes,
        "numerics_id": numerics_id(
            config, ops, checkpoint.revision, [regime(one, length) for one in model.spec.rotaries]
        ),
        "adapters": _adapters(model.spec, config, ops),
    }
    if device is not None:
        held = DeviceSlots(config.max_running, length, ops.device)
        sampler = _sampler(parts, held.tokens, looks=False)
        return DeviceRunner(slots=held, sampler=sampler, queue=device.queue, graphs=device.graphs, **shared)
    slots = SlotState(config.max_running, length)
    sampler = _sampler(parts, slots.tokens, looks=True)
    return ModelRunner(slots=slots, sampler=sampler, depth=config.depth, **shared)


def _sampler(parts: _Parts, tokens: torch.Tensor, *, looks: bool) -> Sampler:
    return Sampler(
        parts.ops,
        state=SamplingState(parts.config.max_running),
        tokens=tokens,
        vocab_size=parts.model.spec.vocab_size,
        eos_token_ids=parts.checkpoint.eos_token_ids,
        looks=looks,
    )


def _adapters(spec: DecoderSpec, config: RunnerConfig, ops: Backend) -> AdapterSlots | None:
    if not config.adapter_slots:
        return None
    return ops.adapter_slots(
        lora_shapes(spec),
        slots=config.adapter_slots,
        max_rank=config.max_adapter_rank,
        dtype=torch_dtype(config.dtype),
    )


def _kv_shape(spec: DecoderSpec, config: RunnerConfig) -> dict[str, Any]:
    return {
        "layers": spec.layers,
        "kv_heads": spec.attention[0].kv_heads,
        "head_dim": spec.attention[0].head_dim,
        "dtype": torch_dtype(config.dtype),
    }


def _size(parts: _Parts) -> KvSize:
    """Sized when the weights are in memory, so that what is free is free."""
    spec, config, ops = parts.model.spec, parts.config, parts.ops
    if config.max_model_len > spec.max_positions:
        raise ModelError(f"max_model_len {config.max_model_len} is over the model's own {spec.max_positions}")
    if parts.device is None and config.kv_bytes is not None:
        check_fits(config.kv_bytes)
    size = size_kv(
        block_bytes=ops.block_bytes(**_kv_shape(spec, config)),
        budget=_budget(parts) if config.kv_bytes is None else config.kv_bytes,
        wanted_len=config.max_model_len,
        model_len=spec.max_positions,
        max_running=config.max_running,
        capped=config.kv_bytes is None,
    )
    if parts.device is None:
        check_slots(config.max_running, size.max_model_len, SlotState.nbytes(config.max_running, size.max_model_len))
    return size


def _budget(parts: _Parts) -> int:
    """A device's is what a full step, made with no more KV than it needs, leaves."""
    config, device = parts.config, parts.device
    if device is None or device.memory is None:
        return auto_budget(config.memory_share)
    step = FullStep(
        slots=config.max_running,
        step_tokens=config.step_tokens,
        max_model_len=config.max_model_len or parts.model.spec.max_positions,
    )
    return profiled_budget(device.memory, _peak(parts, step, device.memory), config.memory_share)


def _peak(parts: _Parts, step: FullStep, memory: DeviceMemory) -> int:
    """What a full step needs at once beside weights and KV. The runner that is tried is gone when this returns."""
    trial = _assemble(parts, KvSize(blocks=step.blocks, bytes=0, max_model_len=step.length + 1))
    return memory.peak(lambda: step.run(trial))
