"""What the ops need of a model's weights, op by op. Norm weights are float32 vectors; projections are packed and
opaque.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from kernels.linear import PackedLinear

Activation = Literal["silu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """RMSNorm: `weight` float32 [hidden]."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AttnIn:
    """`qkv` stacks the rows of Q (heads), K (kv_heads) and V (kv_heads), each head_dim rows a head."""

    norm: Norm
    qkv: PackedLinear
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AttnOut:
    """`proj` maps [heads * head_dim] to [hidden]."""

    proj: PackedLinear


@dataclass(frozen=True, kw_only=True, slots=True)
class Mlp:
    """`gate_up` stacks the gate's rows over the up projection's; `down` maps [intermediate] to [hidden]."""

    norm: Norm
    gate_up: PackedLinear
    down: PackedLinear
    activation: Activation


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The final norm and the projection to the vocabulary."""

    norm: Norm
    proj: PackedLinear


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    """`table` [vocabulary, hidden] in the model's dtype."""

    table: torch.Tensor
