"""A Llama-3-8B-shaped random model through the engine: tokens a second beside the bound of bandwidth and beside transformers' generate."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from shared.types import Sampling
from tests.bench.gpu.bed import Bed, Row, Rows
from tests.bench.gpu.equality import prompts_of
from tests.bench.gpu.models import EIGHT_BILLION, TOY, Sizes, Weights, kv_token_bytes, llama, made
from tests.bench.gpu.serving import Served, Server

_AIMS = {1: 0.8, 256: 0.7}  # of the bound, by batch
_COST_AIM = 0.2  # of tokens a second, that --deterministic may take


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How the engine runs."""

    overlap: bool = True
    graphs: bool = True
    deterministic: bool = False
    torch_compile: bool = False

    def told(self) -> Row:
        """For a row."""
        named = {"overlap": self.overlap, "graphs": self.graphs, "deterministic": self.deterministic}
        return named | ({"torch_compile": True} if self.torch_compile else {})


_RUNNERS = (  # what one runner is used for: the weights are packed anew for each
    (Way(), Way(overlap=False)),
    (Way(deterministic=True),),
    (Way(graphs=False),),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What all ways have in common."""

    sizes: Sizes
    model: Any
    batches: tuple[int, ...]
    prompt: int
    new: int

    @property
    def longest(self) -> int:
        """Tokens of a sequence."""
        return self.prompt + self.new

    @property
    def weight_bytes(self) -> int:
        """That every step reads: all but the embedding."""
        return sum(p.numel() * p.itemsize for name, p in self.model.named_parameters() if "embed" not in name)

    @property
    def product_weights(self) -> int:
        """That every token is multiplied with, the head aside."""
        names = ("embed", "lm_head", "norm")
        return sum(p.numel() for name, p in self.model.named_parameters() if not any(part in name for part in names))


def end_to_end(bed: Bed) -> Iterator[Row]:
    """Batches 1, 32 and 256 of prompts of 1,024 tokens; overlap and graphs on and off; --deterministic's cost; transformers'."""
    case = _case(bed)
    rows: Rows = []
    for ways in _RUNNERS:
        for row in _measured(bed, case, ways):
            rows.append(row)
            yield row
        bed.forget()
    yield from _costs(rows)
    yield from (_transformers(bed, case, batch) for batch in case.batches)


def torch_compile(bed: Bed) -> Iterator[Row]:
    """The same with --torch-compile, whose first steps take as long as it compiles."""
    yield from _measured(bed, _case(bed), (Way(torch_compile=True),))


def _case(bed: Bed) -> Case:
    sizes = bed.size(TOY, EIGHT_BILLION)
    return Case(
        sizes=sizes,
        model=llama(bed, sizes, torch.bfloat16),
        batches=bed.size((1, 2), (1, 32, 256)),
        prompt=bed.size(6, 1024),
        new=bed.size(9, 64),
    )


def _measured(bed: Bed, case: Case, ways: tuple[Way, ...]) -> Iterator[Row]:
    slots = max(case.batches)
    runner = made(
        bed, Weights(case.model), dtype="bfloat16", slots=slots, longest=case.longest, graphs=ways[0].graphs,
        deterministic=ways[0].deterministic, torch_compile=ways[0].torch_compile,
    )  # fmt: skip
    for way in ways:
        server = Server(runner, overlap=way.overlap, slots=slots)
        for batch in case.batches:
            prompts = prompts_of(bed, case.sizes, (case.prompt,) * batch)
            greedy = Sampling(temperature=0.0, max_tokens=case.new, ignore_eos=True)
            yield _row(bed, case, way, batch, server.run(prompts, greedy), "greedy")
            if way == Way():
                drawn = Sampling(temperature=0.8, top_p=0.9, seed=1, max_tokens=case.new, ignore_eos=True)
                yield _row(bed, case, way, batch, server.run(prompts, drawn), "top_p")
    runner.close()


def _row(bed: Bed, case: Case, way: Way, batch: int, served: Served, sampling: str) -> Row:
    seconds = served.decode_step_s(batch)
    kv = kv_token_bytes(case.sizes, 2) * batch * (case.prompt + case.new / 2)
    least = (case.weight_bytes + kv) / bed.copy_rate()
    prefill = 2 * case.product_weights * batch * case.prompt / bed.product_rate()
    aim = _AIMS.get(batch) if way == Way() and sampling == "greedy" else None
    return {
        "engine": "octavo",
        "batch": batch,
        **way.told(),
        "sampling": sampling,
        "tokens_s": batch / seconds,
        "step_ms": 1e3 * seconds,
        "bound_tokens_s": batch / least,
        "of_bound": least / seconds,
        "aim": aim,
        "reached": None if aim is None else least / seconds >= aim,
        # A later run of the same prompts finds them in the prefix cache.
        "prefill_s": served.prefill_s(batch) if sampling == "greedy" else None,
        "prefill_of_matmul_peak": prefill / served.prefill_s(batch) if sampling == "greedy" else None,
    }


def _costs(rows: Rows) -> Iterator[Row]:
    """What --deterministic costs."""
    plain = [row for row in rows if row["overlap"] and row["graphs"] and row["sampling"] == "greedy"]
    rates = {(row["batch"], row["deterministic"]): row["tokens_s"] for row in plain}
    for batch in sorted({row["batch"] for row in plain}):
        cost = 1 - rates[batch, True] / rates[batch, False]
        yield {
            "engine": "cost of deterministic",
            "batch": batch,
            "cost": cost,
            "aim": _COST_AIM,
            "reached": cost < _COST_AIM,
        }


class _Clock:
    """A stopping criterion of transformers' that stops nothing, and notes when it is asked: once a token."""

    def __init__(self, bed: Bed):
        self._bed = bed
        self.at: list[float] = []

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        """Nobody has ended."""
        self._bed.wait()
        self.at.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _transformers(bed: Bed, case: Case, batch: int) -> Row:
    """The same prompts, through generate with its defaults; the median of its steps."""
    prompts = torch.tensor(prompts_of(bed, case.sizes, (case.prompt,) * batch), device=bed.device)
    clock = _Clock(bed)
    count = bed.size(4, 24)
    with torch.inference_mode():
        case.model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=count,
            min_new_tokens=count, pad_token_id=0, stopping_criteria=[clock],
        )  # fmt: skip
    seconds = median(after - before for before, after in pairwise(clock.at))
    bed.forget()
    return {
        "engine": "transformers generate",
        "batch": batch,
        "sampling": "greedy",
        "tokens_s": batch / seconds,
        "step_ms": 1e3 * seconds,
    }
