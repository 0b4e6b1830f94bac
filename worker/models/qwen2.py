"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a window on the upper layers where that is
switched on.
"""

from dataclasses import replace

from kernels.attention.spec import AttentionSpec
from worker.models import llama
from worker.models.reading import Config, flag, integer, sliding, window
from worker.models.spec import DecoderSpec, Family


def spec(config: Config) -> DecoderSpec:
    """Qwen2Config's keys and defaults."""
    plain = llama.spec({"max_position_embeddings": 32768, **config, "attention_bias": None, "mlp_bias": None})
    return replace(plain, attention=windowed(config, plain.attention), qkv_bias=True)


def windowed(config: Config, layers: tuple[AttentionSpec, ...]) -> tuple[AttentionSpec, ...]:
    """Layers from `max_window_layers` on slide, or those that `layer_types` names, if `use_sliding_window`."""
    used = {
        **config,
        "sliding_window": config.get("sliding_window", 4096) if flag(config, "use_sliding_window") else None,
    }
    first = integer(config, "max_window_layers", 28) if used["sliding_window"] is not None else len(layers)
    slides = sliding(config, [number >= first for number in range(len(layers))])
    size = window(used, "sliding_window", slides)
    return tuple(replace(a, window=size if slid else None) for a, slid in zip(layers, slides, strict=True))


def family() -> Family:
    """Qwen2's row of the registry."""
    return Family(spec=spec)
