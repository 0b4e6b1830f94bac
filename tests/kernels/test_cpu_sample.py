"""The compiled sampler against the reference: equal tokens wherever both see equal probabilities."""

import pytest
import torch

from kernels.backend import backend
from kernels.cpu import isa
from kernels.sample import reference
from kernels.sample.philox import uniform
from kernels.sample.reference import Draw

LEVELS = isa.levels()
ROWS = 64


def options(rows: int, **changed: float) -> Draw:
    def column(name: str, value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), changed.get(name, value), dtype=dtype)

    return Draw(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int64),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        seed_low=torch.arange(rows) * 7919,
        seed_high=torch.arange(rows),
        position=torch.arange(rows) % 5,
        choice=torch.arange(rows) % 3,
    )


def some_logits(vocabulary: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(vocabulary)
    made = torch.randn(ROWS, vocabulary, generator=draw) * torch.linspace(0.1, 6, ROWS)[:, None]
    made[::5, ::3] = -torch.inf
    return made


CASES = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"top_k": 500, "top_p": 0.8, "min_p": 0.01, "temperature": 1.7},
    {"top_p": 0.999999},
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocabulary", [5, 64, 1000, 3001])
@pytest.mark.parametrize("changed", CASES, ids=str)
def test_tokens_equal_the_references(level: str, vocabulary: int, changed: dict[str, float]) -> None:
    """Where float32 sums are rounded another way, a draw on the very edge of a token may fall beside it: none does here
    but one in a thousand.
    """
    ops, logits = backend("cpu", threads=2, isa=level), some_logits(vocabulary)
    got, expected = ops.sample(logits, options(ROWS, **changed)), reference.sample(logits, options(ROWS, **changed))
    assert (got != expected).sum() <= 1
    assert torch.isfinite(logits.gather(1, got[:, None])).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_draws_alike_alone_and_in_company(level: str) -> None:
    ops, logits = backend("cpu", threads=2, isa=level), some_logits(3001)
    whole = options(ROWS, top_p=0.9, top_k=300)
    together = ops.sample(logits, whole)
    for row in range(0, ROWS, 9):
        columns = {name: getattr(whole, name)[row : row + 1] for name in Draw.__slots__}
        assert ops.sample(logits[row : row + 1], Draw(**columns)) == together[row]


@pytest.mark.parametrize("level", LEVELS)
def test_draws_follow_the_distribution(level: str) -> None:
    """Chi-square over 20,000 draws from 12 tokens; the seeds are fixed, so that the test is too."""
    ops, draws = backend("cpu", threads=2, isa=level), 20_000
    p = torch.softmax(torch.linspace(-2, 1, 12).double(), -1)
    got = ops.sample(p.log().float().expand(draws, -1).contiguous(), options(draws))
    counts = torch.bincount(got, minlength=12).double()
    assert ((counts - draws * p) ** 2 / (draws * p)).sum() < 31.3  # 0.1 % of chi-square with 11 degrees of freedom


@pytest.mark.parametrize("level", LEVELS)
def test_greedy_and_finite_equal_the_references(level: str) -> None:
    ops, logits = backend("cpu", threads=2, isa=level), some_logits(1003)
    logits[3, 17] = logits[3, 900] = 100.0  # the lowest of equals
    assert torch.equal(ops.greedy(logits), reference.greedy(logits))
    logits = some_logits(1003).nan_to_num()
    logits[1, 1002], logits[2, 5], logits[3, 0] = torch.nan, torch.inf, -torch.inf
    assert torch.equal(ops.finite(logits), reference.finite(logits))
    assert not ops.finite(logits)[1:4].any()


def test_the_words_of_random_numbers_are_the_references() -> None:
    """By a distribution so flat that the token tells the number."""
    ops, vocabulary = backend("cpu"), 4096
    drawn = options(ROWS)
    u = uniform((drawn.seed_low, drawn.seed_high), drawn.position, drawn.choice, 0)
    assert torch.equal(ops.sample(torch.zeros(ROWS, vocabulary), drawn), (u * vocabulary).long())
