"""Which implementation of each op runs: one table a backend, chosen by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.attention.reference import attention
from kernels.attention.spec import AttentionSpec
from kernels.attn_in.reference import attn_in
from kernels.attn_out.reference import attn_out
from kernels.embed.reference import embed
from kernels.kv import KVPool
from kernels.logits.reference import logits
from kernels.mlp.reference import mlp
from kernels.prepare.reference import Batch, Prepared, prepare
from kernels.rotary.table import RotaryTable
from kernels.sample.reference import Draw, greedy, sample
from kernels.weights import AttnIn, AttnOut, Embedding, Head, Mlp

Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The ops that models and the sampler call. The references hold their contracts.

    `numerics` changes whenever an op of this backend may give other bits; it is part of a worker's numerics_id.
    """

    name: str
    numerics: str
    prepare: Callable[[Batch, KVPool, tuple[RotaryTable, ...], tuple[AttentionSpec, ...]], Prepared]
    embed: Callable[[Tensor, Embedding], Tensor]
    attn_in: Callable[[Tensor, AttnIn, Prepared, KVPool, int], Tensor]
    attention: Callable[[Tensor, Prepared, KVPool, int, AttentionSpec], Tensor]
    attn_out: Callable[[Tensor, Tensor, AttnOut], Tensor]
    mlp: Callable[[Tensor, Mlp], Tensor]
    logits: Callable[[Tensor, Tensor, Head], Tensor]
    greedy: Callable[[Tensor], Tensor]
    sample: Callable[[Tensor, Draw], Tensor]


def backend(name: str = "reference") -> Backend:
    """The backend of that name. ValueError lists what there is."""
    makers = {"reference": _reference}
    if name not in makers:
        raise ValueError(f"no kernel backend {name!r}; there are: {', '.join(makers)}")
    return makers[name]()


def _reference() -> Backend:
    return Backend(
        name="reference",
        numerics="reference-1",
        prepare=prepare,
        embed=embed,
        attn_in=attn_in,
        attention=attention,
        attn_out=attn_out,
        mlp=mlp,
        logits=logits,
        greedy=greedy,
        sample=sample,
    )
