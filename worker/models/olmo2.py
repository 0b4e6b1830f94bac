"""OLMo 2: no norm before attention and MLP but one after each, and queries and keys normed over all their heads."""

from dataclasses import replace

from worker.models import llama
from worker.models.reading import Config
from worker.models.spec import DecoderSpec, Family, Names


def spec(config: Config) -> DecoderSpec:
    """Olmo2Config's keys and defaults."""
    return replace(llama.spec({"rms_norm_eps": 1e-5, **config, "mlp_bias": None}), head_norm="projection")


def family() -> Family:
    """OLMo 2's row of the registry."""
    names = Names(
        attn_norm=None,
        attn_after="model.layers.{}.post_attention_layernorm",
        mlp_norm=None,
        mlp_after="model.layers.{}.post_feedforward_layernorm",
    )
    return Family(spec=spec, names=(names,))
