"""Sampling against float64: exact masks, chi-square of draws, greedy ties, and a row's independence of its batch."""

import math
from dataclasses import dataclass

import pytest
import torch

from kernels.sample.filters import threshold
from kernels.sample.reference import Draw, greedy, invert, sample

DRAWS = 20_000


@dataclass
class Ask:
    """One row's parameters."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 11


ASKS = [
    Ask(),
    Ask(temperature=0.3),
    Ask(temperature=2.5),
    Ask(top_k=1),
    Ask(top_k=13),
    Ask(top_k=10_000),
    Ask(top_p=0.6),
    Ask(top_p=0.999),
    Ask(top_p=1e-6),
    Ask(min_p=0.2),
    Ask(min_p=1.0),
    Ask(temperature=1.7, top_k=40, top_p=0.8, min_p=0.05),
    Ask(temperature=0.7, top_p=0.9, min_p=0.02, seed=2**63 + 5),
]


def draw(asks: list[Ask], positions: list[int], choices: list[int] | None = None) -> Draw:
    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return Draw(
        temperature=torch.tensor([a.temperature for a in asks]),
        top_k=ints([a.top_k for a in asks]),
        top_p=torch.tensor([a.top_p for a in asks]),
        min_p=torch.tensor([a.min_p for a in asks]),
        seed_low=ints([a.seed & 0xFFFFFFFF for a in asks]),
        seed_high=ints([a.seed >> 32 for a in asks]),
        position=ints(positions),
        choice=ints(choices or [0] * len(asks)),
    )


def exact(logits: torch.Tensor, ask: Ask) -> torch.Tensor:
    """The distribution in float64, by sorting in plain steps; logits without ties."""
    scaled = (logits / torch.tensor(ask.temperature)).double()
    p = scaled.softmax(-1)
    order = p.argsort(descending=True).tolist()
    if 0 < ask.top_k < len(order):
        order = order[: ask.top_k]
    if ask.top_p < 1:
        mass, reached, count = sum(p[t].item() for t in order), 0.0, 0
        while reached < float(torch.tensor(ask.top_p)) * mass:
            reached += p[order[count]].item()
            count += 1
        order = order[:count]
    order = [t for t in order if p[t] >= ask.min_p * p[order[0]] * (1 - 1e-7)]
    only = torch.zeros_like(p)
    only[order] = p[order]
    return only / only.sum()


def random_logits(vocabulary: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("ask", ASKS, ids=str)
@pytest.mark.parametrize("vocabulary", [50, 1024, 9001])
def test_the_kept_set_is_exact(ask: Ask, vocabulary: int) -> None:
    logits = random_logits(vocabulary)
    scaled = (logits / torch.tensor(ask.temperature))[None]
    one = draw([ask], [0])
    kept = scaled >= threshold(scaled, one.top_k, one.top_p, one.min_p)
    assert torch.equal(kept[0], exact(logits, ask) > 0)


@pytest.mark.parametrize("ask", ASKS, ids=str)
def test_draws_follow_the_exact_distribution(ask: Ask) -> None:
    logits = random_logits(300)
    p = exact(logits, ask)
    tokens = sample(logits.expand(DRAWS, -1), draw([ask] * DRAWS, list(range(DRAWS))))
    counts = torch.bincount(tokens, minlength=300).double()
    assert (counts[p == 0] == 0).all()
    common = p * DRAWS >= 10
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    expected = torch.cat((p[common], p[~common].sum()[None])) * DRAWS
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    chi = ((observed - expected) ** 2 / expected).sum().item()
    assert chi <= freedom + 4.5 * math.sqrt(2 * max(freedom, 1)) + 1e-9


def test_a_row_draws_alike_in_any_batch_and_again() -> None:
    logits = torch.stack([random_logits(2500, seed) for seed in range(len(ASKS))])
    logits[3, :2000] = -torch.inf
    everything = draw(ASKS, list(range(len(ASKS))))
    together = sample(logits, everything)
    assert torch.equal(sample(logits.flip(0), draw(ASKS[::-1], list(range(len(ASKS)))[::-1])), together.flip(0))
    for row, ask in enumerate(ASKS):
        assert sample(logits[row : row + 1], draw([ask], [row])).item() == together[row]


def test_seed_position_and_choice_each_change_the_draw() -> None:
    flat = torch.zeros(4, 5000)
    asks = [Ask(seed=1), Ask(seed=1), Ask(seed=1), Ask(seed=1 << 32 | 1)]
    tokens = sample(flat, draw(asks, [0, 1, 0, 0], [0, 0, 1, 0]))
    assert len(set(tokens.tolist())) == 4


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 3000)
    logits[1, [2999, 7, 1500]] = 4.0
    logits[2, :] = -torch.inf
    logits[2, 40] = -3.0
    assert greedy(logits).tolist() == [0, 7, 40]


def test_ties_at_the_edge_of_top_k_all_stay() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 0.0]])
    one = draw([Ask(top_k=2)], [0])
    kept = logits >= threshold(logits, one.top_k, one.top_p, one.min_p)
    assert kept.tolist() == [[True, False, True, True, False]]


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((DRAWS, 64), -torch.inf)
    logits[:, [5, 63]] = 0.0
    assert set(sample(logits, draw([Ask()] * DRAWS, list(range(DRAWS)))).tolist()) == {5, 63}


@pytest.mark.parametrize("vocabulary", [3, 1024, 2500])
def test_the_inverse_has_its_ends(vocabulary: int) -> None:
    weights = torch.zeros(2, vocabulary)
    weights[:, [1, vocabulary - 1]] = torch.tensor([0.25, 0.75])
    u = torch.tensor([0.0, 1 - 2.0**-32], dtype=torch.float64)
    assert invert(weights, u).tolist() == [1, vocabulary - 1]
    assert invert(weights, torch.tensor([0.2499, 0.2501], dtype=torch.float64)).tolist() == [1, vocabulary - 1]


def test_the_inverse_never_lands_on_a_weightless_token() -> None:
    draw_ = torch.Generator().manual_seed(4)
    weights = torch.rand(2000, 3333, generator=draw_) * (torch.rand(2000, 3333, generator=draw_) < 0.01)
    for value in (0.0, 0.5, 1 - 2.0**-32):
        tokens = invert(weights, torch.full((2000,), value, dtype=torch.float64))
        assert (weights.gather(1, tokens[:, None]) > 0).all()
