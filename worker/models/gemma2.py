"""Gemma 2: norms before and after, weights of norms around zero, scaled embeddings, soft caps, every other layer
slides.
"""

from dataclasses import replace

from worker.models.reading import (
    Config,
    activation,
    attention,
    flag,
    integer,
    number,
    optional,
    positive,
    refused,
    sliding,
    window,
)
from worker.models.rope import reach, rotary
from worker.models.spec import DecoderSpec, Family, Names


def spec(config: Config) -> DecoderSpec:
    """Gemma2Config's keys and defaults."""
    refused(config, "use_bidirectional_attention")
    number_of_layers = integer(config, "num_hidden_layers")
    slides = sliding(config, [number % 2 == 0 for number in range(number_of_layers)])
    return gemma(
        config,
        slides,
        attn_softcap=optional(config, "attn_logit_softcapping", 50.0),
        logit_softcap=optional(config, "final_logit_softcapping", 30.0),
    )


def gemma(
    config: Config, slides: tuple[bool, ...], *, attn_softcap: float | None, logit_softcap: float | None
) -> DecoderSpec:
    """What Gemma 2 and 3 have in common; all layers are turned alike."""
    heads = attention(
        {"head_dim": 256, **config},
        scale=positive(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        softcap=attn_softcap,
    )
    size = window(config, "sliding_window", slides, 4096)
    rope = rotary(config, heads.head_dim, 10000.0)
    bias = flag(config, "attention_bias")
    hidden = integer(config, "hidden_size")
    return DecoderSpec(
        vocab_size=integer(config, "vocab_size"),
        hidden=hidden,
        intermediate=integer(config, "intermediate_size"),
        max_positions=reach(integer(config, "max_position_embeddings", 8192), rope),
        eps=number(config, "rms_norm_eps", 1e-6),
        attention=tuple(replace(heads, window=size if slid else None) for slid in slides),
        rotary=(rope,) * len(slides),
        activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        qkv_bias=bias,
        out_bias=bias,
        norm_offset=1.0,
        embed_scale=hidden**0.5,
        logit_softcap=logit_softcap,
        tied=flag(config, "tie_word_embeddings", True),
    )


def names(model: str = "model", head: str = "lm_head") -> Names:
    """Four norms a layer; `model` stands before all names but the head's."""
    layer = model + ".layers.{}."
    return Names(
        embedding=f"{model}.embed_tokens",
        attn_norm=f"{layer}input_layernorm",
        qkv=tuple(f"{layer}self_attn.{part}_proj" for part in "qkv"),
        q_norm=f"{layer}self_attn.q_norm",
        k_norm=f"{layer}self_attn.k_norm",
        out=f"{layer}self_attn.o_proj",
        attn_after=f"{layer}post_attention_layernorm",
        mlp_norm=f"{layer}pre_feedforward_layernorm",
        gate_up=(f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"),
        down=f"{layer}mlp.down_proj",
        mlp_after=f"{layer}post_feedforward_layernorm",
        final_norm=f"{model}.norm",
        head=head,
    )


def family() -> Family:
    """Gemma 2's row of the registry."""
    return Family(spec=spec, names=(names(),))
