"""`octavo bench bitwise`: what it costs that a row's bits do not depend on the rows beside it.

Attention, norms and sampling work on rows alone in any case. Products are where engines trade this away: a library chooses its order of
sums by the number of rows. So all products of a step are timed in turns with the library's, on weights of the same shapes, which follow
each other as the layers do so that no cache keeps one from a step to the next. The library has what it likes best: its own packed layout,
rows that have been rounded for it, results that it may round, no norm, bias or activation; ours are as the ops take them, with rows and
results in float32.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.backend import Backend
from kernels.weights import Head, Norm, Packed
from octavo.bench.kernels.rig import Weights
from octavo.bench.rates import timed

_Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """A step's products for a number of rows, by each side. The library's are missing where it packs nothing of this dtype."""

    ours: _Step
    plain: _Step
    packed: _Step | None


def products(weights: Weights) -> list[Packed]:
    """Of one step, in order."""
    return [
        *(one for each in weights.layers for one in (each.attn_in.qkv, each.attn_out.proj, each.mlp.gate_up, each.mlp.down)),
        weights.head.proj,
    ]  # fmt: skip


def _ours(ops: Backend, packed: Sequence[Packed], rows: int) -> _Step:
    heads = [Head(norm=Norm(weight=torch.ones(one.k), eps=1e-5), proj=one) for one in packed]
    inputs = {k: torch.randn(rows, k) for k in {one.k for one in packed}}
    places = torch.arange(rows)

    def step() -> None:
        for head in heads:
            ops.logits(inputs[head.proj.k], places, head)

    return step


def _plain(weights: Sequence[torch.Tensor], rows: int) -> _Step:
    inputs = {one.shape[1]: torch.randn(rows, one.shape[1]).to(one.dtype) for one in weights}

    def step() -> None:
        for weight in weights:
            F.linear(inputs[weight.shape[1]], weight)

    return step


def _packed(weights: Sequence[torch.Tensor], rows: int) -> _Step | None:
    inputs = {one.shape[1]: torch.randn(rows, one.shape[1]).to(one.dtype) for one in weights}
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if product is None:
        return None
    try:
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
        product(inputs[weights[0].shape[1]], packed[0], None, "none", [], "")
    except RuntimeError:
        return None
    ks = [weight.shape[1] for weight in weights]

    def step() -> None:
        for k, weight in zip(ks, packed, strict=True):
            product(inputs[k], weight, None, "none", [], "")

    return step


def sides(ops: Backend, packed: Sequence[Packed], dtype: torch.dtype, rows: int) -> Sides:
    """With random weights for the library."""
    draw = torch.Generator().manual_seed(1)
    weights = [(torch.randn(one.n, one.k, generator=draw) / one.k**0.5).to(dtype) for one in packed]
    return Sides(ours=_ours(ops, packed, rows), plain=_plain(weights, rows), packed=_packed(weights, rows))


def row(one: Sides, rows: int, *, rounds: int, seconds: float, threads: tuple[int, int]) -> dict[str, Any]:
    """Milliseconds of all products of a step, medians over rounds in turns; `cost` is the median of each round's ours / fastest, less 1.
    `threads`: torch's own beside our ops, and the library's.
    """
    taken: list[dict[str, float]] = []
    for _ in range(rounds):
        torch.set_num_threads(threads[0])
        round_ = {"ours": timed(one.ours, seconds)}
        torch.set_num_threads(threads[1])
        round_["plain"] = timed(one.plain, seconds)
        if one.packed is not None:
            round_["packed"] = timed(one.packed, seconds)
        taken.append(round_)
    ratios = [each["ours"] / min(value for name, value in each.items() if name != "ours") for each in taken]
    medians = {f"{name}_ms": round(1000 * statistics.median(each[name] for each in taken), 3) for name in taken[0]}
    told = {"cost": statistics.median(ratios) - 1, "least": min(ratios) - 1, "most": max(ratios) - 1}
    return {"rows": rows, **medians, **{name: round(value, 4) for name, value in told.items()}}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for people."""
    lines = ["| rows | ours, ms | library, packed, ms | library, plain, ms | cost (least-most) |", "|" + " --- |" * 5]
    for each in rows:
        packed = f"{each['packed_ms']:.4g}" if "packed_ms" in each else "-"
        cost = f"**{each['cost']:+.0%}** ({each['least']:+.0%} to {each['most']:+.0%})"
        lines.append(f"| {each['rows']} | {each['ours_ms']:.4g} | {packed} | {each['plain_ms']:.4g} | {cost} |")
    return "\n".join(lines) + "\n"
