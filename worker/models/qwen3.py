"""Qwen3 (dense): queries and keys are normed head by head, windows as in Qwen2."""

from dataclasses import replace

from worker.models import llama, qwen2
from worker.models.reading import Config
from worker.models.spec import DecoderSpec, Family


def spec(config: Config) -> DecoderSpec:
    """Qwen3Config's keys and defaults."""
    plain = llama.spec({"max_position_embeddings": 32768, "head_dim": 128, **config, "mlp_bias": None})
    return replace(plain, attention=qwen2.windowed(config, plain.attention), head_norm="head")


def family() -> Family:
    """Qwen3's row of the registry."""
    return Family(spec=spec)
