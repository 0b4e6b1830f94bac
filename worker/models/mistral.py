"""Mistral: Llama with a sliding window on all layers, or on those that `layer_types` names."""

from dataclasses import replace

from worker.models import llama
from worker.models.reading import Config, sliding, window
from worker.models.spec import DecoderSpec, Family


def spec(config: Config) -> DecoderSpec:
    """MistralConfig's keys and defaults: a window of 4096 unless `sliding_window` is null."""
    plain = llama.spec({"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, **config})
    slides = sliding(config, [config.get("sliding_window", 4096) is not None] * plain.layers)
    size = window(config, "sliding_window", slides, 4096)
    layers = (replace(a, window=size if slid else None) for a, slid in zip(plain.attention, slides, strict=True))
    return replace(plain, attention=tuple(layers))


def family() -> Family:
    """Mistral's row of the registry."""
    return Family(spec=spec)
