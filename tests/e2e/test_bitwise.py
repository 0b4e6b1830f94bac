"""The compiled kernels' logits of the demo model in bfloat16, bit for bit: alone, in company, chunked, cached, on one thread and on two.

OCTAVO_JUDGE=full takes 40 prompts, where by default 8 stand for them.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.backend import backend
from kernels.kv import BLOCK
from kernels.prepare.reference import Batch
from kernels.rotary.table import rotary_table
from worker.models.decoder import Decoder, load
from worker.sources.cache import cache_directory
from worker.sources.open import open_checkpoint

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.timeout(900)]

PROMPTS = 40 if os.environ.get("OCTAVO_JUDGE") == "full" else 8
LONGEST, DECODED = 300, 6
Prompt = list[int]


class Forward:
    """The model's forward pass over sequences that it keeps; no scheduler, no runner."""

    def __init__(self, model_path: Path, threads: int):
        self.ops = backend("cpu", threads=threads)
        checkpoint = open_checkpoint(str(model_path), cache=cache_directory()).checkpoint
        self.model: Decoder = load(checkpoint, torch.bfloat16, self.ops, invariant=True)
        spec, self.width = self.model.spec, -(-LONGEST // BLOCK)
        self.pool = self.ops.kv_pool(
            layers=spec.layers,
            kv_heads=spec.attention[0].kv_heads,
            head_dim=spec.attention[0].head_dim,
            blocks=PROMPTS * self.width,
            dtype=torch.bfloat16,
        )
        self.rotaries = tuple(rotary_table(one, LONGEST, LONGEST) for one in spec.rotaries)
        self.tables = torch.randperm(self.pool.blocks, generator=torch.Generator().manual_seed(5)).view(PROMPTS, -1)

    def step(self, chunks: list[tuple[int, int, Prompt]]) -> list[torch.Tensor]:
        """Chunks (sequence, start, tokens) in one step -> the logits of each chunk's last position."""
        starts = np.array([start for _, start, _ in chunks], dtype=np.int64)
        lengths = np.array([len(tokens) for *_, tokens in chunks], dtype=np.int64)
        batch = Batch(starts=starts, lengths=lengths, tables=self.tables[[row for row, *_ in chunks]])
        tokens = torch.tensor([token for *_, own in chunks for token in own])
        with torch.inference_mode():
            step = self.ops.prepare(batch, self.pool, self.rotaries, self.model.spec.attentions)
            hidden = self.model.forward(tokens, step, self.pool)
            return list(self.model.logits(hidden, torch.from_numpy(np.cumsum(lengths) - 1)).clone())

    def run(self, prompts: list[tuple[int, Prompt]], chunk: int, done: int = 0) -> dict[int, torch.Tensor]:
        """(sequence, tokens) side by side: prefill in chunks, then the last tokens one at a time. Of each sequence the logits of the
        prefill's end and of every token after it, [1 + DECODED, vocabulary]. `done` positions are there already.
        """
        plans = {row: list(_pieces(tokens, chunk, done)) for row, tokens in prompts}
        found: dict[int, list[torch.Tensor]] = {row: [] for row in plans}
        while left := [(row, *pieces.pop(0)) for row, pieces in plans.items() if pieces]:
            for (row, start, own), logits in zip(left, self.step(left), strict=True):
                if start + len(own) >= len(dict(prompts)[row]) - DECODED:
                    found[row].append(logits)
        return {row: torch.stack(logits) for row, logits in found.items()}


def _pieces(tokens: Prompt, chunk: int, done: int) -> Iterator[tuple[int, Prompt]]:
    edges = [*range(done, len(tokens) - DECODED, chunk), *range(len(tokens) - DECODED, len(tokens) + 1)]
    return ((start, tokens[start:end]) for start, end in pairwise(edges))


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    draw = np.random.default_rng(0)
    lengths = draw.integers(20, LONGEST - 60, PROMPTS)
    return [draw.integers(3, 49_000, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def forward(demo_model: Path) -> Forward:
    return Forward(demo_model, threads=2)


@pytest.fixture(scope="module")
def alone(forward: Forward, prompts: list[Prompt]) -> list[torch.Tensor]:
    """What every other way must equal."""
    return [forward.run([(row, tokens)], LONGEST)[row] for row, tokens in enumerate(prompts)]


def _assert_equal(got: dict[int, torch.Tensor], expected: list[torch.Tensor]) -> None:
    for row, logits in got.items():
        assert torch.equal(logits, expected[row]), row


@pytest.mark.parametrize("size", [7, 64])
def test_logits_in_a_batch_equal_those_alone(forward: Forward, prompts: list[Prompt], alone, size: int) -> None:
    numbered = list(enumerate(prompts))
    for first in range(0, len(numbered), size):
        _assert_equal(forward.run(numbered[first : first + size], LONGEST), alone)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_do_not_depend_on_chunks(forward: Forward, prompts: list[Prompt], alone, chunk: int) -> None:
    _assert_equal(forward.run(list(enumerate(prompts)), chunk), alone)


def test_logits_over_another_sequences_blocks_equal_those_computed(
    forward: Forward, prompts: list[Prompt], alone
) -> None:
    tables = forward.tables.clone()
    for row, tokens in enumerate(prompts):
        cached = (len(tokens) - DECODED - 1) // BLOCK
        other = (row + 1) % len(prompts)
        forward.run([(row, tokens)], LONGEST)
        forward.tables[other, :cached] = forward.tables[row, :cached]
        got = forward.run([(other, tokens)], LONGEST, done=cached * BLOCK)[other]
        forward.tables.copy_(tables)
        assert torch.equal(got, alone[row]), row


def test_logits_on_one_thread_equal_those_on_two(demo_model: Path, prompts: list[Prompt], alone) -> None:
    _assert_equal(Forward(demo_model, threads=1).run(list(enumerate(prompts)), LONGEST), alone)
