"""config.json from a GGUF file's metadata."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.sources.config import normalise
from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata

SERVED = ("llama",)

# The four numbers of the llama3 rotary scaling are not in the file, only the frequency factors that come of them; these three never vary.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def check_served(metadata: Metadata) -> None:
    """Raises SourceError where the file's architecture is not one that `read_config` knows."""
    architecture = metadata.text("general.architecture")
    if architecture not in SERVED:
        raise SourceError(
            f"{metadata.path}: architecture {architecture!r} is not served from GGUF; served: {', '.join(SERVED)}"
        )
    if metadata.integer("llama.expert_count", 0) > 0:
        raise SourceError(f"{metadata.path}: llama.expert_count > 0: mixtures of experts are not served from GGUF")


def read_config(
    metadata: Metadata,
    *,
    names: Collection[str],
    vocab_size: int,
    dtype: str,
    rope_factors: npt.NDArray[np.float32] | None,
) -> dict[str, Any]:
    """The configuration that Hugging Face's own conversion of this model would have.

    `names` are the tensors under Hugging Face's names (they tell tied embeddings and biases), `vocab_size` the embedding's rows,
    `rope_factors` the contents of `rope_freqs.weight` where the file has it.
    """
    return normalise(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "vocab_size": vocab_size,
            "dtype": dtype,
            "tie_word_embeddings": "lm_head.weight" not in names,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in names,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in names,
            **_sizes(metadata),
            **_rotary(metadata, rope_factors),
            **_special_tokens(metadata),
        }
    )


def _sizes(metadata: Metadata) -> dict[str, Any]:
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    return {
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("llama.feed_forward_length"),
        "num_hidden_layers": metadata.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("llama.attention.head_count_kv", heads),
        "head_dim": metadata.integer("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": metadata.integer("llama.context_length"),
        "rms_norm_eps": _short(metadata.number("llama.attention.layer_norm_rms_epsilon")),
    }


def _short(value: float) -> float:
    """The shortest decimal with the same float32: the file holds 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rotary(metadata: Metadata, factors: npt.NDArray[np.float32] | None) -> dict[str, Any]:
    theta = _short(metadata.number("llama.rope.freq_base", 10_000.0))
    kind = metadata.text("llama.rope.scaling.type", "none")
    if factors is not None:
        return {"rope_theta": theta, "rope_scaling": _llama3_scaling(metadata, theta, factors)}
    if kind == "linear":
        return {
            "rope_theta": theta,
            "rope_scaling": {"rope_type": "linear", "factor": metadata.number("llama.rope.scaling.factor")},
        }
    if kind != "none":
        raise SourceError(f"{metadata.path}: llama.rope.scaling.type is {kind!r}; expected none or linear")
    return {"rope_theta": theta}


def _llama3_scaling(metadata: Metadata, theta: float, factors: npt.NDArray[np.float32]) -> dict[str, Any]:
    """The scaling whose factors these are: the largest is the scaling's own, and the rest must follow from it."""
    scaling = {"rope_type": "llama3", "factor": _short(float(factors.max())), **_LLAMA3}
    expected = llama3_factors(2 * factors.size, theta, scaling)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise SourceError(
            f"{metadata.path}: tensor rope_freqs.weight is not that of a llama3 rotary scaling; no other is served"
        )
    return scaling


def llama3_factors(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """By what each rotary frequency is divided, [head_dim / 2]. Source: transformers' `_compute_llama3_parameters`.

    Wavelengths below original / high stay, those above original / low are divided by `factor`, and between the inverse is blended.
    """
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))


def _special_tokens(metadata: Metadata) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: metadata.optional_integer(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
