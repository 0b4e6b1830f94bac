"""GGUF files of every served architecture, written from tiny random models that transformers makes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.fakes.gguf_files import write_gguf
from worker.models.checkpoint import Checkpoint
from worker.sources.open import open_checkpoint

SIZES = {
    "vocab_size": 90,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,  # one more than Gemma 3's six
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LONG, SHORT = [1.0, 2.0, 4.0, 8.0, 9.0, 10.0, 11.0, 12.0], [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A family's file: `config` are its own keys, `extra` the metadata that say so."""

    architecture: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)


def keys(architecture: str, **values: Any) -> dict[str, Any]:
    return {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}


def theta(value: float, **scaling: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": value, **scaling}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "long_factor": LONG,
    "short_factor": SHORT,
    "original_max_position_embeddings": 32,
}
LOCAL_AND_GLOBAL = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
}
CASES = {
    "llama": Case(
        architecture="llama",
        model_type="llama",
        config={"rope_parameters": theta(50_000.0), "rms_norm_eps": 1e-5},
        extra=keys("llama", rope__freq_base=50_000.0, rope__dimension_count=16),
    ),
    "mistral with a window": Case(
        architecture="llama",
        model_type="mistral",
        config={"rope_parameters": theta(10_000.0), "sliding_window": 4, "head_dim": 16},
        extra=keys("llama", attention__sliding_window=4),
    ),
    "mistral with a head of its own width": Case(
        architecture="llama",
        model_type="mistral",
        config={"rope_parameters": theta(10_000.0), "sliding_window": None, "head_dim": 32},
        extra=keys("llama", attention__key_length=32, attention__value_length=32),
    ),
    "qwen2": Case(
        architecture="qwen2",
        model_type="qwen2",
        config={"rope_parameters": theta(1_000_000.0), "tie_word_embeddings": True},
        extra=keys("qwen2", rope__freq_base=1_000_000.0),
    ),
    "qwen2 with yarn": Case(
        architecture="qwen2",
        model_type="qwen2",
        config={"rope_parameters": theta(1_000_000.0) | YARN},
        extra=keys(
            "qwen2",
            rope__freq_base=1_000_000.0,
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=32,
        ),
    ),
    "qwen3": Case(
        architecture="qwen3",
        model_type="qwen3",
        config={"rope_parameters": theta(1_000_000.0), "head_dim": 32},
        extra=keys("qwen3", rope__freq_base=1_000_000.0, attention__key_length=32, attention__value_length=32),
    ),
    "gemma2": Case(
        architecture="gemma2",
        model_type="gemma2",
        config={
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 4,
            "attn_logit_softcapping": 30.0,
            "final_logit_softcapping": 7.0,
            "rope_parameters": theta(10_000.0),
        },
        extra=keys(
            "gemma2",
            attention__key_length=32,
            attention__value_length=32,
            attention__sliding_window=4,
            attn_logit_softcapping=30.0,
            final_logit_softcapping=7.0,
        ),
    ),
    "gemma3": Case(
        architecture="gemma3",
        model_type="gemma3_text",
        config={
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 4,
            "rope_parameters": LOCAL_AND_GLOBAL,
        },
        extra=keys(
            "gemma3",
            attention__key_length=32,
            attention__value_length=32,
            attention__sliding_window=4,
            rope__freq_base=500_000.0,
            rope__freq_base_swa=20_000.0,
            rope__scaling__type="linear",
            rope__scaling__factor=8.0,
        ),
    ),
    "phi3": Case(
        architecture="phi3",
        model_type="phi3",
        config={"rope_parameters": theta(10_000.0), "sliding_window": 5, "original_max_position_embeddings": 128},
        extra=keys("phi3", attention__sliding_window=5, rope__scaling__original_context_length=128),
    ),
    "phi4 mini": Case(
        architecture="phi3",
        model_type="phi3",
        config={
            "rope_parameters": theta(10_000.0, partial_rotary_factor=0.75) | LONGROPE
            | {"long_factor": LONG[:6], "short_factor": SHORT[:6]},
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
        },
        extra=keys(
            "phi3",
            attention__sliding_window=0,
            rope__dimension_count=12,
            rope__scaling__original_context_length=32,
            rope__scaling__attn_factor=(1 + 2 / 5) ** 0.5,  # sqrt(1 + ln(128 / 32) / ln(32))
        ),
        extra_tensors={
            "rope_factors_long.weight": torch.tensor(LONG[:6]),
            "rope_factors_short.weight": torch.tensor(SHORT[:6]),
        },
    ),
    "olmo2": Case(
        architecture="olmo2",
        model_type="olmo2",
        config={"rope_parameters": theta(500_000.0)},
        extra=keys("olmo2", rope__freq_base=500_000.0),
    ),
}  # fmt: skip


def original(case: Case) -> PreTrainedModel:
    """A random model in float32 whose norms are not all ones."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(case.model_type, **{**SIZES, "initializer_range": 0.2, **case.config})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def stored(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    return tensors


def written(path: Path, case: Case, model: PreTrainedModel, *, kind: Kind = Kind.F32, **changes: Any) -> Checkpoint:
    """The case's file, matrices in `kind`, as it is read; `changes` go into its metadata, None taking a key away."""
    extra = {**case.extra, **changes}
    write_gguf(
        path,
        model.config.to_dict(),
        stored(model),
        kind=kind,
        architecture=case.architecture,
        extra={key: value for key, value in extra.items() if value is not None},
        extra_tensors=case.extra_tensors,
    )
    return open_checkpoint(str(path), cache=path.parent / "cache").checkpoint
