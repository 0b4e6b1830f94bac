"""What the ops need of a model's weights, op by op. Norm weights are float32 vectors; projections are packed and
opaque.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from kernels.attention.spec import AttentionSpec

Packed = Any  # a projection as the backend's `pack` made it: opaque, but for its rows `n` and its inputs `k`

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """RMSNorm: `weight` float32 [hidden]."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadNorm:
    """RMSNorm of queries and keys before they are turned. Each weight holds head_dim values (each head is normed by
    itself) or those of all its heads (they are normed together).
    """

    q: Norm
    k: Norm


@dataclass(frozen=True, kw_only=True, slots=True)
class AttnIn:
    """`qkv` stacks the rows of Q (heads), K (kv_heads) and V (kv_heads), each head_dim rows a head. `norm` None: the
    input is taken as it is. `rotary` numbers the step's rotary table that turns this layer's queries and keys.
    """

    norm: Norm | None
    qkv: Packed
    heads: int
    kv_heads: int
    head_dim: int
    head_norm: HeadNorm | None = None
    rotary: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttnOut:
    """`proj` maps [heads * head_dim] to [hidden]; `after` norms its result before it is added to the residual."""

    proj: Packed
    after: Norm | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """`gate_up` stacks the gate's rows over the up projection's; `down` maps [intermediate] to [hidden]; `after` norms
    its result before it is added to the residual. `norm` None: the input is taken as it is.
    """

    norm: Norm | None
    gate_up: Packed
    down: Packed
    activation: Activation
    after: Norm | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The final norm and the projection to the vocabulary; logits pass through softcap * tanh(logit / softcap) when
    `softcap` is given.
    """

    norm: Norm
    proj: Packed
    softcap: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """`table` [vocabulary, hidden] in the model's dtype; a row is multiplied by `scale` in float32."""

    table: torch.Tensor
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Weights of one layer, op by op, and how it attends."""

    attn_in: AttnIn
    attention: AttentionSpec
    attn_out: AttnOut
    mlp: Mlp
