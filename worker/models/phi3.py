"""Phi-3, Phi-3.5 and Phi-4 (-mini: part of each head is turned): fused tensors, LongRoPE, an optional window on all
layers.
"""

from dataclasses import replace

from kernels.rotary.table import RotarySpec
from worker.models import llama
from worker.models.errors import ModelError
from worker.models.reading import Config, number, sliding, window
from worker.models.rope import completed, rotary_spec, settings
from worker.models.spec import DecoderSpec, Family, Names

_FORMER = ("su", "yarn")  # what LongRoPE was called in this family's first checkpoints


def spec(config: Config) -> DecoderSpec:
    """Phi3Config's keys and defaults."""
    flat = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_parameters")}
    given = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, **flat, "partial_rotary_factor": None}
    plain = llama.spec({**given, "attention_bias": None, "mlp_bias": None})
    slides = sliding(config, [config.get("sliding_window") is not None] * plain.layers)
    size = window(config, "sliding_window", slides)
    layers = (replace(a, window=size if slid else None) for a, slid in zip(plain.attention, slides, strict=True))
    rope = _rotary(config, plain.attention[0].head_dim)
    return replace(plain, attention=tuple(layers), rotary=(rope,) * plain.layers)


def _rotary(config: Config, head_dim: int) -> RotarySpec:
    lengths = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
    rope = completed(settings(config), {**lengths, **config})
    if rope["rope_type"] in _FORMER:
        rope = {**rope, "rope_type": "longrope"}
    part = number(rope, "partial_rotary_factor", 1.0)
    dim = int(head_dim * part)
    if not 0 < dim <= head_dim or dim % 2:
        raise ModelError(f"config.json: partial_rotary_factor {part} of head_dim {head_dim} is not an even number")
    return rotary_spec(rope, dim, 10000.0)


def family() -> Family:
    """Phi-3's row of the registry."""
    names = Names(qkv=("model.layers.{}.self_attn.qkv_proj",), gate_up=("model.layers.{}.mlp.gate_up_proj",))
    return Family(spec=spec, names=(names,))
