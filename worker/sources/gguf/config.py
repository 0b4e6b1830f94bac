"""config.json from a GGUF file's metadata."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from worker.sources.config import normalise
from worker.sources.errors import SourceError
from worker.sources.gguf.architecture import ARCHITECTURES, Architecture
from worker.sources.gguf.metadata import Metadata
from worker.sources.gguf.rotary import Factors, base, rotary, scaled, short

_LOCAL_THETA = 10_000.0  # of Gemma 3's sliding layers, which older files do not say
# Gemma's makers scale attention by the width of a head, but in their 27B models by hidden size / heads; the files do not say. The
# numbers are those models' layers. Source: gemma_pytorch's config.py, query_pre_attn_scalar.
_BY_HIDDEN_SIZE = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What the tensors tell: their names (Hugging Face's), the embedding's rows, the dtype to compute in, the rotary factors."""

    names: Collection[str]
    vocab_size: int
    dtype: str
    factors: Factors


def find(metadata: Metadata) -> tuple[str, Architecture]:
    """The file's architecture. Raises SourceError where it is not one that `read_config` knows."""
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        served = ", ".join(sorted(ARCHITECTURES))
        raise SourceError(f"{metadata.path}: architecture {name!r} is not served from GGUF; served: {served}")
    if metadata.integer(f"{name}.expert_count", 0) > 0:
        raise SourceError(f"{metadata.path}: {name}.expert_count > 0: mixtures of experts are not served from GGUF")
    return name, ARCHITECTURES[name]


def read_config(metadata: Metadata, facts: Facts) -> dict[str, Any]:
    """The configuration that Hugging Face's own conversion of this model would have."""
    name, architecture = find(metadata)
    keys = metadata.under(name)
    config = {
        "model_type": architecture.model_type,
        "vocab_size": facts.vocab_size,
        "dtype": facts.dtype,
        "tie_word_embeddings": "lm_head.weight" not in facts.names,
        **_sizes(keys),
        **_special_tokens(metadata),
        **_SPECIFIC[name](keys, facts),
    }
    return normalise({"architectures": [_CLASSES[config["model_type"]]], **config})


def _sizes(keys: Metadata) -> dict[str, Any]:
    hidden = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    if heads < 1:
        raise SourceError(f"{keys.path}: {keys.name('attention.head_count')} is {heads}; expected at least 1")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        name = keys.name("attention.value_length")
        raise SourceError(f"{keys.path}: {name} is not the width of a key ({head_dim}), which is not served")
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": short(keys.number("attention.layer_norm_rms_epsilon")),
    }


def _special_tokens(metadata: Metadata) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: metadata.optional_integer(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}


def _partial(keys: Metadata) -> dict[str, Any]:
    """The part of each head that is rotated, where it is not the whole."""
    whole = keys.integer(
        "attention.key_length", keys.integer("embedding_length") // keys.integer("attention.head_count")
    )
    rotated = keys.integer("rope.dimension_count", whole)
    return {} if rotated == whole else {"partial_rotary_factor": rotated / whole}


def _plain(keys: Metadata, facts: Facts) -> dict[str, Any]:
    return {"hidden_act": "silu", **rotary(keys, facts.factors), **_partial(keys)}


def _llama(keys: Metadata, facts: Facts) -> dict[str, Any]:
    """Llama, and Mistral, whose files call themselves llama: only the window tells them apart, where there is one."""
    window = keys.integer("attention.sliding_window", 0)
    biases = {
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in facts.names,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in facts.names,
    }
    if not window:
        return {**_plain(keys, facts), **biases}
    if any(biases.values()):
        raise SourceError(f"{keys.path}: {keys.name('attention.sliding_window')} together with biases is not served")
    return {**_plain(keys, facts), "model_type": "mistral", "sliding_window": window}


def _qwen(keys: Metadata, facts: Facts) -> dict[str, Any]:
    return {**_plain(keys, facts), "use_sliding_window": False, "attention_bias": False}


def _qwen2(keys: Metadata, facts: Facts) -> dict[str, Any]:
    missing = "model.layers.0.self_attn.q_proj.bias" not in facts.names
    if missing:  # Hugging Face's Qwen2 always has them
        raise SourceError(f"{keys.path}: tensor blk.0.attn_q.bias is missing; expected it in a qwen2 model")
    return {**_plain(keys, facts), "use_sliding_window": False}


def _olmo2(keys: Metadata, facts: Facts) -> dict[str, Any]:
    if keys.has("attention.sliding_window"):
        raise SourceError(f"{keys.path}: {keys.name('attention.sliding_window')}: this is OLMo 3, which is not served")
    return {**_plain(keys, facts), "attention_bias": False}


def _phi3(keys: Metadata, facts: Facts) -> dict[str, Any]:
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    window = keys.integer("attention.sliding_window", 0)
    extra = {"original_max_position_embeddings": original, "sliding_window": window or None}
    return {**_plain(keys, facts), **extra}


def _gemma(keys: Metadata, layers: int, every: int) -> dict[str, Any]:
    """Layers whose window slides, but each `every`th, and what both generations share."""
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    large = layers == _BY_HIDDEN_SIZE[keys.prefix]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": hidden // heads if large else keys.integer("attention.key_length", hidden // heads),
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": [
            "full_attention" if number % every == 0 else "sliding_attention" for number in range(1, layers + 1)
        ],
    }


def _gemma2(keys: Metadata, facts: Facts) -> dict[str, Any]:
    return {
        **_gemma(keys, keys.integer("block_count"), 2),
        **rotary(keys, facts.factors),
        "attn_logit_softcapping": short(keys.number("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": short(keys.number("final_logit_softcapping", 30.0)),
    }


def _gemma3(keys: Metadata, facts: Facts) -> dict[str, Any]:
    """Each sixth layer sees everything, with rotary settings of its own; a scaling in the file is theirs."""
    if facts.factors:
        raise SourceError(f"{keys.path}: tensor {min(facts.factors)} is not served in a gemma3 model")
    cap = keys.number("final_logit_softcapping", 0.0)
    local = short(keys.number("rope.freq_base_swa", _LOCAL_THETA))
    everything = scaled(keys) or {"rope_type": "default"}
    return {
        **_gemma(keys, keys.integer("block_count"), keys.integer("attention.sliding_window_pattern", 6)),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": short(cap) if cap else None,
        "rope_parameters": {
            "full_attention": {**everything, "rope_theta": base(keys) if keys.has("rope.freq_base") else 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


_SPECIFIC: Mapping[str, Callable[[Metadata, Facts], dict[str, Any]]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "llama": _llama,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen,
}
_CLASSES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
