"""From a checkpoint and a configuration to a runner."""

from typing import Any

import torch

from kernels.backend import Backend, backend
from kernels.lora.slots import AdapterSlots
from kernels.rotary.table import regime, rotary_table
from worker.execution.config import RunnerConfig
from worker.execution.memory import InsufficientMemory, KvSize, auto_budget, size_kv
from worker.execution.numerics import numerics_id
from worker.execution.runner import ModelRunner
from worker.execution.state import SlotState
from worker.layers.weights import torch_dtype
from worker.models.checkpoint import Checkpoint
from worker.models.decoder import Decoder, Progress, load, silent
from worker.models.errors import ModelError
from worker.models.spec import DecoderSpec, lora_shapes
from worker.sampling.sampler import Sampler
from worker.sampling.state import SamplingState

__all__ = ["InsufficientMemory", "ModelError", "ModelRunner", "RunnerConfig", "build"]


def build(checkpoint: Checkpoint, config: RunnerConfig, progress: Progress = silent) -> ModelRunner:
    """Load the model, size and allocate the KV cache. `progress(done, total)` counts layers.

    Raises ModelError (what is wrong with the checkpoint or does not fit it) and InsufficientMemory.
    """
    torch.set_num_threads(config.threads)
    ops = backend(config.backend, threads=config.threads, isa=config.cpu_isa, deterministic=config.deterministic)
    with torch.inference_mode():
        model = load(checkpoint, torch_dtype(config.dtype), ops, invariant=config.deterministic, progress=progress)
        return _assemble(checkpoint, config, ops, model)


def _assemble(checkpoint: Checkpoint, config: RunnerConfig, ops: Backend, model: Decoder) -> ModelRunner:
    size = _size(model.spec, config, ops)
    length = size.max_model_len
    slots = SlotState(config.max_running, length)
    return ModelRunner(
        model=model,
        ops=ops,
        pool=ops.kv_pool(**_kv_shape(model.spec, config), blocks=size.blocks),
        rotaries=tuple(rotary_table(one, length + 1, length) for one in model.spec.rotaries),
        slots=slots,
        sampler=Sampler(
            ops,
            state=SamplingState(config.max_running),
            tokens=slots.tokens,
            vocab_size=model.spec.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
        ),
        max_model_len=length,
        kv_bytes=size.bytes,
        numerics_id=numerics_id(config, ops, checkpoint.revision, [regime(one, length) for one in model.spec.rotaries]),
        depth=config.depth,
        adapters=_adapters(model.spec, config, ops),
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


def _size(spec: DecoderSpec, config: RunnerConfig, ops: Backend) -> KvSize:
    """Sized when the weights are in memory, so that what is free is free."""
    if config.max_model_len > spec.max_positions:
        raise ModelError(f"max_model_len {config.max_model_len} is over the model's own {spec.max_positions}")
    return size_kv(
        block_bytes=ops.block_bytes(**_kv_shape(spec, config)),
        budget=auto_budget(config.memory_share) if config.kv_bytes is None else config.kv_bytes,
        wanted_len=config.max_model_len,
        model_len=spec.max_positions,
        max_running=config.max_running,
        capped=config.kv_bytes is None,
    )
