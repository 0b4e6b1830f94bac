"""What attention computes, apart from which tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """`scale` multiplies q.k; `window` positions up to and including a query's own are seen (None: all); scores pass
    through softcap * tanh(score / softcap) when `softcap` is given.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
