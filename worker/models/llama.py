"""Llama (2, 3.x, SmolLM2 and others that call themselves `llama`)."""

from collections.abc import Mapping
from typing import Any

from kernels.attention.spec import AttentionSpec
from worker.models.errors import ModelError
from worker.models.reading import integer, number, one_of, rotary
from worker.models.spec import DecoderSpec, Family, Names


def _attention(config: Mapping[str, Any]) -> AttentionSpec:
    heads = integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head_dim = integer(config, "head_dim", integer(config, "hidden_size") // heads)
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    return AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """LlamaConfig's keys and defaults."""
    one_of(config, "hidden_act", ("silu",), "silu")
    attention = _attention(config)
    bias = bool(config.get("attention_bias"))
    return DecoderSpec(
        vocab_size=integer(config, "vocab_size"),
        hidden=integer(config, "hidden_size"),
        intermediate=integer(config, "intermediate_size"),
        layers=integer(config, "num_hidden_layers"),
        max_positions=integer(config, "max_position_embeddings", 2048),
        eps=number(config, "rms_norm_eps", 1e-6),
        attention=attention,
        rotary=rotary(config, attention.head_dim, 10000.0),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings")),
    )


def family() -> Family:
    """Llama's row of the registry."""
    return Family(spec=spec, names=Names())
