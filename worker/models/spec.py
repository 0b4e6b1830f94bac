"""A decoder as a table of numbers and names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.attention.spec import AttentionSpec
from kernels.rotary.table import RotarySpec
from kernels.weights import Activation


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSpec:
    """Everything about a decoder's architecture that is not a weight."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    max_positions: int
    eps: float
    attention: AttentionSpec
    rotary: RotarySpec
    activation: Activation = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Tensor names without `.weight`; those of a layer hold `{}` for its number."""

    embedding: str = "model.embed_tokens"
    attn_norm: str = "model.layers.{}.input_layernorm"
    q: str = "model.layers.{}.self_attn.q_proj"
    k: str = "model.layers.{}.self_attn.k_proj"
    v: str = "model.layers.{}.self_attn.v_proj"
    out: str = "model.layers.{}.self_attn.o_proj"
    mlp_norm: str = "model.layers.{}.post_attention_layernorm"
    gate: str = "model.layers.{}.mlp.gate_proj"
    up: str = "model.layers.{}.mlp.up_proj"
    down: str = "model.layers.{}.mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model family: how its config.json is read, and what its tensors are called."""

    spec: Callable[[Mapping[str, Any]], DecoderSpec]
    names: Names
