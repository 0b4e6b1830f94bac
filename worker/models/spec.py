"""A decoder as a table of numbers and names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kernels.attention.spec import AttentionSpec
from kernels.lora.weights import LoraShapes
from kernels.rotary.table import RotarySpec
from kernels.weights import Activation


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSpec:
    """Everything about a decoder's architecture that is not a weight. `attention` and `rotary` have an entry a layer.

    Norms multiply by `norm_offset` plus their weight. `head_norm` tells over what queries and keys are normed (None:
    they are not). Embeddings are multiplied by `embed_scale`, rounded to the weights' dtype.
    """

    vocab_size: int
    hidden: int
    intermediate: int
    max_positions: int
    eps: float
    attention: tuple[AttentionSpec, ...]
    rotary: tuple[RotarySpec, ...]
    activation: Activation = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norm: Literal["head", "projection"] | None = None
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    tied: bool = False

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.attention)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The different ones."""
        return tuple(dict.fromkeys(self.attention))

    @property
    def rotaries(self) -> tuple[RotarySpec, ...]:
        """The different ones; a layer's rotary number is its place among them."""
        return tuple(dict.fromkeys(self.rotary))


def lora_shapes(spec: DecoderSpec) -> LoraShapes:
    """What adapters of the model must fit."""
    a, hidden = spec.attention[0], spec.hidden
    queries, keys = (a.heads * a.head_dim, hidden), (a.kv_heads * a.head_dim, hidden)
    inner = (spec.intermediate, hidden)
    return LoraShapes(
        layers=spec.layers,
        modules={
            "q": queries,
            "k": keys,
            "v": keys,
            "o": (hidden, queries[0]),
            "gate": inner,
            "up": inner,
            "down": (hidden, spec.intermediate),
            "head": (spec.vocab_size, hidden),
            "embed": (hidden, spec.vocab_size),
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Tensor names without `.weight`; those of a layer hold `{}` for its number. `qkv` and `gate_up` name one tensor
    with all rows or several to be stacked; what is None does not exist.
    """

    embedding: str = "model.embed_tokens"
    attn_norm: str | None = "model.layers.{}.input_layernorm"
    qkv: tuple[str, ...] = (
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    )
    q_norm: str = "model.layers.{}.self_attn.q_norm"
    k_norm: str = "model.layers.{}.self_attn.k_norm"
    out: str = "model.layers.{}.self_attn.o_proj"
    attn_after: str | None = None
    mlp_norm: str | None = "model.layers.{}.post_attention_layernorm"
    gate_up: tuple[str, ...] = ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj")
    down: str = "model.layers.{}.mlp.down_proj"
    mlp_after: str | None = None
    final_norm: str = "model.norm"
    head: str = "lm_head"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A model family: how its config.json is read, and what its tensors are called. Of several `names` those count
    whose embedding the checkpoint holds, else the first.
    """

    spec: Callable[[Mapping[str, Any]], DecoderSpec]
    names: tuple[Names, ...] = (Names(),)
