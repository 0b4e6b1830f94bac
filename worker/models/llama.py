"""Llama (2, 3.x, SmolLM2 and others that call themselves `llama`)."""

from worker.models.reading import Config, activation, attention, flag, integer, number
from worker.models.rope import reach, rotary
from worker.models.spec import DecoderSpec, Family


def spec(config: Config) -> DecoderSpec:
    """LlamaConfig's keys and defaults."""
    layers, heads = integer(config, "num_hidden_layers"), attention(config)
    rope = rotary(config, heads.head_dim, 10000.0)
    bias = flag(config, "attention_bias")
    return DecoderSpec(
        vocab_size=integer(config, "vocab_size"),
        hidden=integer(config, "hidden_size"),
        intermediate=integer(config, "intermediate_size"),
        max_positions=reach(integer(config, "max_position_embeddings", 2048), rope),
        eps=number(config, "rms_norm_eps", 1e-6),
        attention=(heads,) * layers,
        rotary=(rope,) * layers,
        activation=activation(config, "hidden_act", "silu"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        tied=flag(config, "tie_word_embeddings"),
    )


def family() -> Family:
    """Llama's row of the registry."""
    return Family(spec=spec)
