"""Sampling, changes to logits and log-probabilities, in the interpreter, against the references: equal logits give equal tokens."""

import pytest
import torch

from kernels.sample import adjust
from kernels.sample.philox import uniform as reference_uniform
from kernels.sample.reference import Draw
from kernels.sample.reference import finite as reference_finite
from kernels.sample.reference import greedy as reference_greedy
from kernels.sample.reference import sample as reference_sample
from tests.kernels.triton_cases import assert_close, drawn, launcher
from worker.sampling.logprobs import log_normaliser

from kernels.logits.triton import Seen, bias_, logprobs, mask_, penalise_, softcap_, words  # isort: skip (after the interpreter)
from kernels.sample.triton import finite, greedy, sample, uniform  # isort: skip

VOCABULARIES = (7, 1024, 5000)


def logits_of(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    """Rows apart by more than the vocabulary, NaN between them; some tokens forbidden, some equal."""
    wide = torch.full((rows, vocabulary + 3), torch.nan)
    wide[:, :vocabulary] = drawn(rows, vocabulary, seed=seed) * 3
    wide[:, : vocabulary // 3].round_()
    wide[1:, 1:vocabulary:5] = -torch.inf
    return wide[:, :vocabulary]


def draws(rows: int, **columns) -> Draw:
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "choice": 0}
    given = {name: torch.as_tensor(value) for name, value in {**defaults, **columns}.items()}
    full = {name: value.expand(rows).clone() for name, value in given.items()}
    seeds = torch.randint(0, 2**32, (2, rows), generator=torch.Generator().manual_seed(5))
    return Draw(**full, seed_low=seeds[0], seed_high=seeds[1], position=torch.arange(rows) * 1000)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_greedy_and_finite_equal_the_reference(vocabulary) -> None:
    logits = logits_of(3, vocabulary)
    logits[0, 3] = logits[0, 5] = 50.0
    assert torch.equal(greedy(launcher(), logits), reference_greedy(logits))
    whole = logits.nan_to_num(neginf=-9.0)
    for bad in (torch.nan, torch.inf, -torch.inf):
        whole[1, vocabulary - 1] = bad
        assert finite(launcher(), whole).tolist() == [True, False, True]
    assert torch.equal(finite(launcher(), logits), reference_finite(logits))


def test_random_numbers_are_the_references() -> None:
    draw = draws(150, choice=torch.arange(150) % 3)
    want = reference_uniform((draw.seed_low, draw.seed_high), draw.position, draw.choice, 0)
    assert torch.equal(uniform(launcher(), draw), want)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.3},
        {"top_k": torch.tensor([1, 3, 40, 0, 5000])},
        {"top_p": torch.tensor([0.1, 0.5, 0.9, 1.0, 0.999])},
        {"min_p": torch.tensor([0.0, 0.01, 0.2, 1.0, 0.5])},
        {"top_k": torch.tensor([50, 2, 0, 7, 20]), "top_p": torch.tensor([0.8, 0.3, 0.6, 0.99, 0.5]), "min_p": 0.05},
    ],
)
def test_equal_logits_give_the_references_tokens(vocabulary, filters) -> None:
    logits, draw = logits_of(5, vocabulary), draws(5, **filters)
    assert torch.equal(sample(launcher(), logits, draw), reference_sample(logits.clone(), draw))


@pytest.mark.parametrize("vocabulary", [7, 4000])
def test_a_sampled_token_is_always_one_that_the_filters_keep(vocabulary) -> None:
    logits = logits_of(8, vocabulary, seed=3)
    draw = draws(8, top_k=2, temperature=2.0)
    tokens = sample(launcher(), logits, draw)
    assert (logits.gather(1, tokens[:, None])[:, 0] >= logits.topk(2).values[:, 1]).all()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_masks_bias_penalties_and_soft_cap_equal_the_reference(vocabulary) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = logits_of(4, vocabulary)
    want = logits.clone()
    rows = torch.tensor([2, 0])

    allowed = torch.rand(2, words(vocabulary) * 32, generator=draw) < 0.5
    bits = (allowed.view(2, -1, 32).long() << torch.arange(32)).sum(-1)
    mask_(launcher(), logits, rows, bits.to(torch.int32))
    at = allowed[:, :vocabulary].nonzero()
    adjust.allow_only(want, rows, rows[at[:, 0]], at[:, 1])
    assert torch.equal(logits, want)

    pairs = torch.tensor([[0, 1], [0, 3], [3, 1]])
    values = torch.tensor([1.5, -2.0, 100.0])
    bias_(launcher(), logits, pairs[:, 0], pairs[:, 1], values)
    adjust.add_bias(want, pairs[:, 0], pairs[:, 1], values)
    assert torch.equal(logits, want)

    tokens = torch.randint(0, vocabulary, (3, 9), generator=draw)
    prompts = torch.zeros(3, words(vocabulary) * 32, dtype=torch.int64)
    prompts[torch.arange(3)[:, None], tokens[:, :4]] = 1
    counts = torch.zeros(3, vocabulary, dtype=torch.int32)
    for row, own in enumerate(tokens[:, 4:]):
        counts[row].index_add_(0, own, torch.ones(5, dtype=torch.int32))
    packed = (prompts.view(3, -1, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    penalties = torch.tensor([[1.3, 0.0, 0.0], [1.0, 0.5, 0.25], [0.7, -0.5, 0.1]])
    rows, entries = torch.tensor([3, 1]), torch.tensor([2, 0])
    penalise_(launcher(), logits, rows, entries, Seen(counts=counts, prompts=packed, penalties=penalties))
    adjust.penalise(want, rows, tokens[entries], counts[entries[:, None], tokens[entries]], penalties[entries])
    finite_ = torch.isfinite(want)
    assert torch.equal(torch.isfinite(logits), finite_)
    assert_close(logits[finite_], want[finite_], torch.float32)

    capped = logits.nan_to_num(neginf=-1e4)
    expected = 5.0 * torch.tanh(capped / 5.0)
    softcap_(launcher(), capped, 5.0)
    assert_close(capped, expected, torch.float32)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_logprobs_equal_the_reference(vocabulary) -> None:
    logits = logits_of(3, vocabulary)
    tokens = torch.tensor([[0, 6, 2], [5, 0, 2], [2, 2, 5]])
    got, normaliser = logprobs(launcher(), logits, tokens)
    want = log_normaliser(logits)
    assert_close(normaliser, want[:, 0], torch.float32)
    assert_close(got, logits.gather(1, tokens) - want, torch.float32)
