"""Tiny random models of every served family, made by transformers in float32: odd sizes, windows that prompts outgrow,
heads tied and untied, every rotary scaling.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tests.fakes.checkpoint import MemoryCheckpoint

WINDOW = 24
SHARP = (
    0.1  # weights of wide heads: larger ones make attention so sharp that float32 errs by 1e-4, here as in transformers
)
ORIGINAL = 128  # tokens that scaled rotary embeddings were "trained" for
_ROPE = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
_SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 96,
    "intermediate_size": 151,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One tiny model; `changes` go into its configuration."""

    name: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)

    def make(self, seed: int = 0) -> tuple[PreTrainedModel, MemoryCheckpoint]:
        """The model, and the same as a checkpoint. The same for one seed."""
        torch.manual_seed(seed)
        config = CONFIG_MAPPING[self.model_type](**self.fields())
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        _unsettle(model, mean=0.0 if "gemma" in self.model_type else 0.5)
        return model, MemoryCheckpoint(config.to_dict(), model.state_dict(), (2,))

    def fields(self) -> dict[str, Any]:
        """Of the configuration."""
        fields = {**_SHAPE, **self.changes}
        if self.model_type != "gemma3":
            return fields
        outside = {key: fields[key] for key in ("initializer_range", "tie_word_embeddings")}
        return {"text_config": fields, "vision_config": _VISION, "mm_tokens_per_image": 1, **outside}


_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def _unsettle(model: PreTrainedModel, mean: float) -> None:
    """Biases and norms take part, where a fresh model's do nothing."""
    for name, tensor in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(tensor, mean=mean, std=0.3)


def variants() -> tuple[Variant, ...]:
    """All of them."""
    return (*_llamas(), *_windowed(), *_gemmas(), *_phis(), *_olmos())


def _llamas() -> Iterator[Variant]:
    scalings: dict[str, dict[str, Any]] = {
        "linear": {"rope_theta": 10000.0, "factor": 4.0},
        "dynamic": {"rope_theta": 10000.0, "factor": 4.0},
        "yarn": {**_ROPE},
        "yarn-mscale": {**_ROPE, "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False},
        "longrope": {**_ROPE, "short_factor": [1.0 + i / 9 for i in range(8)], "long_factor": [4.0] * 8},
        "llama3": {**_ROPE, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }
    yield Variant(name="llama", model_type="llama", changes={"num_key_value_heads": 6, "head_dim": 20})
    yield Variant(
        name="llama-tied-biased",
        model_type="llama",
        changes={
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_size": 78,
            "head_dim": 16,
        },
    )
    for name, rope in scalings.items():
        typed = {"rope_type": name.partition("-")[0], **rope}
        yield Variant(name=f"llama-{name}", model_type="llama", changes={"rope_parameters": typed})


def _windowed() -> Iterator[Variant]:
    some = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    types = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    yield Variant(name="mistral", model_type="mistral", changes={"sliding_window": WINDOW, "head_dim": 80})
    yield Variant(name="mistral-whole", model_type="mistral", changes={"sliding_window": None})
    yield Variant(
        name="qwen2",
        model_type="qwen2",
        changes={"num_attention_heads": 7, "hidden_size": 98, "num_key_value_heads": 1},
    )
    yield Variant(name="qwen2-windows", model_type="qwen2", changes={**some, "tie_word_embeddings": True})
    yield Variant(name="qwen2-types", model_type="qwen2", changes={**some, **types})
    yield Variant(
        name="qwen3", model_type="qwen3", changes={"head_dim": 96, "num_attention_heads": 3, "num_key_value_heads": 1}
    )
    yield Variant(
        name="qwen3-windows",
        model_type="qwen3",
        changes={**some, "head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    )


def _gemmas() -> Iterator[Variant]:
    shape = {"sliding_window": WINDOW, "query_pre_attn_scalar": 40, "hidden_size": 90}
    pattern = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
    wide = {"head_dim": 256, "num_attention_heads": 3, "num_key_value_heads": 1}
    stretched = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    yield Variant(
        name="gemma2",
        model_type="gemma2",
        changes={**shape, **wide, "tie_word_embeddings": True, "initializer_range": SHARP},
    )
    yield Variant(
        name="gemma2-caps",
        model_type="gemma2",
        changes={**shape, "head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, **pattern},
    )
    yield Variant(
        name="gemma3", model_type="gemma3_text", changes={**shape, **wide, **pattern, "tie_word_embeddings": True}
    )
    yield Variant(
        name="gemma3-stretched",
        model_type="gemma3_text",
        changes={
            **shape,
            "head_dim": 80,
            "num_hidden_layers": 7,
            "final_logit_softcapping": 5.0,
            "rope_parameters": stretched,
            "attention_bias": True,
        },
    )
    yield Variant(name="gemma3-inside", model_type="gemma3", changes={**shape, "head_dim": 16, **pattern})


def _phis() -> Iterator[Variant]:
    part = {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1}
    dim = 12
    lists = {"short_factor": [1.0 + i / 9 for i in range(dim)], "long_factor": [1.5 + i for i in range(dim)]}
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, **lists, "partial_rotary_factor": 0.75}
    yield Variant(
        name="phi3",
        model_type="phi3",
        changes={"hidden_size": 288, "num_attention_heads": 3, "num_key_value_heads": 3, "initializer_range": SHARP},
    )
    yield Variant(name="phi3-window", model_type="phi3", changes={"sliding_window": WINDOW})
    yield Variant(
        name="phi4-mini",
        model_type="phi3",
        changes={
            **part,
            "rope_parameters": longrope,
            "original_max_position_embeddings": ORIGINAL,
            "tie_word_embeddings": True,
        },
    )


def _olmos() -> Iterator[Variant]:
    yield Variant(name="olmo2", model_type="olmo2")
    yield Variant(
        name="olmo2-odd",
        model_type="olmo2",
        changes={
            "hidden_size": 90,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "yarn", **_ROPE},
        },
    )
