"""What the tiles of all that works over a vocabulary are judged by."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.gpu.launch import Launcher
from kernels.logits.triton import Seen, logprobs, mask_, penalise_, softcap_, words
from kernels.sample.reference import Draw
from kernels.sample.triton import greedy, sample
from octavo.bench.kernels.tune.inputs import drawn
from octavo.bench.kernels.tune.judge import Run, Subject
from octavo.bench.kernels.tune.sizes import Sizes


def subjects(sizes: Sizes) -> Iterator[Subject]:
    """All, over rows of few and of many sequences."""
    for rows in (1, sizes.batch):
        kinds = {
            "greedy": _greedy, "sample": _sampled, "logprobs": _logprobs, "logits": _masked,
        }  # fmt: skip
        for kernel, make in kinds.items():
            name = f"{rows} rows"
            yield Subject(kernel=kernel, size="*", name=name, make=partial(make, sizes=sizes, rows=rows))
    yield Subject(kernel="logits", size="*", name="penalties", make=partial(_penalised, sizes=sizes, rows=sizes.batch))
    yield Subject(kernel="logits", size="*", name="soft cap", make=partial(_capped, sizes=sizes, rows=sizes.batch))


def _logits(launch: Launcher, sizes: Sizes, rows: int) -> torch.Tensor:
    return drawn(launch, rows, sizes.vocabulary, dtype=torch.float32).mul_(4)


def _greedy(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    logits = _logits(launch, sizes, rows)
    return lambda: greedy(launch, logits)


def _sampled(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    """With what takes the most passes over a row."""
    logits, ids = _logits(launch, sizes, rows), torch.arange(rows, device=launch.device)
    full = partial(torch.full, (rows,), device=launch.device)
    draw = Draw(
        temperature=full(0.8), top_k=full(50), top_p=full(0.9), min_p=full(0.0), seed_low=ids, seed_high=ids, position=ids,
        choice=torch.zeros_like(ids),
    )  # fmt: skip
    return lambda: sample(launch, logits, draw)


def _logprobs(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    logits = _logits(launch, sizes, rows)
    tokens = torch.arange(rows * 10, device=launch.device).view(rows, 10) * 97 % sizes.vocabulary
    return lambda: logprobs(launch, logits, tokens)[0]


def _masked(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    logits, every = _logits(launch, sizes, rows), torch.arange(rows, device=launch.device)
    allowed = torch.full((rows, words(sizes.vocabulary)), 0x5A5A5A5A, dtype=torch.int32, device=launch.device)

    def run() -> torch.Tensor:
        mask_(launch, logits, every, allowed)
        return logits

    return run


def _penalised(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    logits, every = _logits(launch, sizes, rows), torch.arange(rows, device=launch.device)
    counts = torch.zeros(rows, sizes.vocabulary, dtype=torch.int32, device=launch.device)
    counts[:, ::7] = 1
    prompts = torch.full((rows, words(sizes.vocabulary)), 0x10101010, dtype=torch.int32, device=launch.device)
    seen = Seen(counts=counts, prompts=prompts, penalties=torch.ones(rows, 3, device=launch.device))

    def run() -> torch.Tensor:
        penalise_(launch, logits, every, every, seen)
        return logits

    return run


def _capped(launch: Launcher, *, sizes: Sizes, rows: int) -> Run:
    logits = _logits(launch, sizes, rows)

    def run() -> torch.Tensor:
        softcap_(launch, logits, 30.0)
        return logits

    return run
