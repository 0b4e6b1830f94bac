"""Every sampling option against a float64 reference: what is left, how often each is drawn, and that a row minds its own business."""

import math
from dataclasses import replace

import pytest
import torch

from kernels.backend import backend
from shared.types import Sampling
from tests.unit.sampling.reference import adjusted, distribution, forbidden
from worker.plan import SampleRow, SlotStart
from worker.sampling.sampler import NOTHING_LEFT, Sampler
from worker.sampling.sending import at_once
from worker.sampling.state import SamplingState

DRAWS = 20_000
VOCABULARY, EOS = 60, (2, 9)
PROMPT = (0, 5, 5, 17, 31, 58, 7)
OUTPUTS = (7, 12, 12, 40, 12, 9, 17)
PLAIN = Sampling(temperature=1.0, max_tokens=50, seed=77, ignore_eos=True)
OPTIONS = {
    "nothing": {},
    "presence": {"presence_penalty": 1.5},
    "presence below zero": {"presence_penalty": -2.0},
    "frequency": {"frequency_penalty": 0.7},
    "frequency below zero": {"frequency_penalty": -0.4},
    "repetition": {"repetition_penalty": 1.8},
    "repetition below one": {"repetition_penalty": 0.5},
    "all penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.3},
    "bias": {"logit_bias": ((3, 2.5), (12, -1.0), (59, 4.0), (0, -100.0))},
    "allowed": {"allowed_token_ids": (1, 4, 12, 33, 59)},
    "one allowed": {"allowed_token_ids": (44,)},
    "bad words": {
        "bad_words": ((50,), (7, 24), (17, 20), (9, 17, 21), (12, 17, 22), (12, 9, 17, 23), (17, 21), (7,) * 32)
    },
    "min tokens": {"min_tokens": 8, "ignore_eos": False, "stop_token_ids": (30, 31)},
    "min tokens are out": {"min_tokens": 7, "ignore_eos": False, "stop_token_ids": (30, 31)},
    "temperature and filters": {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    "everything": {
        "temperature": 1.3,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.005,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
        "logit_bias": ((12, 3.0), (17, 2.0), (20, 9.0)),
        "allowed_token_ids": tuple(range(1, 50)),
        "bad_words": ((17, 20), (33,)),
        "min_tokens": 20,
        "ignore_eos": False,
    },
}
NAMES = list(OPTIONS)


def options(name: str) -> Sampling:
    return replace(PLAIN, **OPTIONS[name])


def random_logits(rows: int, seed: int = 3, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def started(
    samplings: list[Sampling],
    *,
    outputs: tuple[int, ...] = OUTPUTS,
    of_each: list[tuple[int, ...]] | None = None,
    ops: str = "reference",
) -> tuple[Sampler, list[SampleRow]]:
    """A sampler whose slots have just been given PROMPT and `outputs` (or each its own), and what they sample next; slots are choices."""
    tokens = torch.full((len(samplings), 64), 59)  # what was there before
    made = Sampler(
        backend(ops),
        state=SamplingState(len(samplings)),
        tokens=tokens,
        vocab_size=VOCABULARY,
        eos_token_ids=EOS,
    )
    rows = []
    for slot, sampling in enumerate(samplings):
        known = (*PROMPT, *(of_each[slot] if of_each else outputs))
        tokens[slot, : len(known)] = torch.tensor(known)
        made.start(SlotStart(slot=slot, tokens=known, prompt_len=len(PROMPT), sampling=sampling, choice_index=slot))
        rows.append(SampleRow(chunk=0, slot=slot, position=len(known)))
    return made, rows


def before_temperature(sampler: Sampler, logits: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
    changes = sampler.stage_changes(rows, at_once)
    return sampler.changed(logits, changes) if changes else logits


@pytest.mark.parametrize("outputs", [(), (17,), OUTPUTS], ids=["first", "second", "later"])
@pytest.mark.parametrize("name", NAMES)
def test_masks_are_exact_and_logits_those_of_the_reference(name: str, outputs: tuple[int, ...]) -> None:
    logits = random_logits(1)
    sampler, rows = started([options(name)], outputs=outputs)
    got = before_temperature(sampler, logits, rows)[0]
    expected = torch.tensor(adjusted(logits[0].tolist(), options(name), PROMPT, outputs, EOS), dtype=torch.float64)
    banned = forbidden(options(name), outputs, EOS, VOCABULARY)
    assert set((got == -torch.inf).nonzero()[:, 0].tolist()) == banned
    kept = expected > -math.inf
    assert torch.allclose(got[kept].double(), expected[kept], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_draws_follow_the_reference_distribution(name: str) -> None:
    logits = random_logits(1)
    sampling = options(name)
    p = distribution(logits[0].tolist(), sampling, PROMPT, OUTPUTS, EOS)
    sampler, rows = started([sampling] * DRAWS, ops="auto")  # the compiled draw, where it can be had
    tokens = sampler.sample(logits.expand(DRAWS, -1), rows).tokens
    counts = torch.bincount(tokens, minlength=VOCABULARY).double()
    assert (counts[p == 0] == 0).all()
    common = p * DRAWS >= 10
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    expected = torch.cat((p[common], p[~common].sum()[None])) * DRAWS
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    chi = ((observed - expected) ** 2 / expected).sum().item()
    assert chi <= freedom + 4.5 * math.sqrt(2 * max(freedom, 1)) + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_greedy_takes_the_reference_s_most_likely_token(name: str) -> None:
    logits = random_logits(50, seed=9)
    cold = replace(options(name), temperature=0.0)
    sampler, rows = started([cold] * 50)
    expected = [distribution(row.tolist(), cold, PROMPT, OUTPUTS, EOS).argmax().item() for row in logits]
    assert sampler.sample(logits, rows).tokens.tolist() == expected


@pytest.mark.parametrize("ops", ["reference", "auto"])
@pytest.mark.parametrize("order", [1, 7, 5], ids=["as they are", "mixed", "mixed again"])
def test_a_row_is_the_same_alone_and_in_a_batch_of_all_kinds(order: int, ops: str) -> None:
    """Bit for bit: the logits, the tokens and the log-probabilities; outputs are of all lengths."""
    samplings = [replace(options(name), seed=i, logprobs=3) for i, name in enumerate(NAMES)]
    outputs = [OUTPUTS[: i % (len(OUTPUTS) + 1)] for i in range(len(NAMES))]
    logits = random_logits(len(NAMES))
    sampler, rows = started(samplings, of_each=outputs, ops=ops)
    mixed = [i * order % len(NAMES) for i in range(len(NAMES))]
    assert sorted(mixed) == list(range(len(NAMES)))
    together = before_temperature(sampler, logits[mixed], [rows[i] for i in mixed])
    drawn = sampler.sample(logits[mixed], [rows[i] for i in mixed])
    for place, slot in enumerate(mixed):
        alone, _ = started(samplings, of_each=outputs, ops=ops)
        row = [rows[slot]]
        expected = adjusted(logits[slot].tolist(), samplings[slot], PROMPT, outputs[slot], EOS)
        assert torch.allclose(together[place].double(), torch.tensor(expected).double(), atol=1e-5, rtol=1e-5)
        assert torch.equal(before_temperature(alone, logits[slot : slot + 1], row)[0], together[place])
        single = alone.sample(logits[slot : slot + 1], row)
        assert single.tokens.item() == drawn.tokens[place].item()
        assert single.logprobs[0] == drawn.logprobs[place]


def test_sixty_four_children_differ_and_are_repeatable_by_seed() -> None:
    """Twenty tokens each of 64 choices of one seed, twice, and of another seed."""

    def run(seed: int) -> list[tuple[int, ...]]:
        sampling = replace(options("all penalties"), seed=seed)
        sampler, rows = started([sampling] * 64)
        drawn = []
        for step in range(20):
            at = [row._replace(position=row.position + step) for row in rows]
            tokens = sampler.sample(random_logits(1, seed=step).expand(64, -1), at).tokens
            sampler._penalties._buffer[torch.arange(64), at[0].position] = tokens
            drawn.append(tokens)
        return [tuple(child) for child in torch.stack(drawn, 1).tolist()]

    first = run(5)
    assert first == run(5)
    assert len(set(first)) == 64
    assert not set(first) & set(run(6))


@pytest.mark.parametrize("name", ["all penalties", "frequency", "repetition", "bad words", "everything"])
def test_what_is_counted_step_by_step_equals_what_is_replayed_at_once(name: str) -> None:
    """A sequence that goes on, and one that starts with the same outputs given, as after a preemption or on another worker."""
    sampling = options(name)
    going, rows = started([sampling], outputs=())
    outputs: list[int] = []
    for step in range(25):
        logits = random_logits(1, seed=100 + step)
        at = [rows[0]._replace(position=len(PROMPT) + step)]
        resumed, same = started([sampling], outputs=tuple(outputs))
        assert same == at
        assert torch.equal(before_temperature(going, logits, at), before_temperature(resumed, logits, at))
        token = going.sample(logits, at).tokens
        assert token.equal(resumed.sample(logits, at).tokens)
        going._penalties._buffer[0, at[0].position] = token
        outputs.append(token.item())


def test_a_slot_that_starts_again_forgets_the_counts_of_the_one_before() -> None:
    sampling = options("all penalties")
    sampler, rows = started([sampling, sampling])
    logits = random_logits(2)
    sampler.sample(logits, rows)
    for tokens in ((*PROMPT, *OUTPUTS), PROMPT):
        sampler.start(SlotStart(slot=1, tokens=tokens, prompt_len=len(PROMPT), sampling=sampling, choice_index=1))
        fresh, at = started([sampling], outputs=tokens[len(PROMPT) :])
        got = before_temperature(sampler, logits[:1], [at[0]._replace(slot=1)])
        assert torch.equal(got, before_temperature(fresh, logits[:1], at))
    assert len(sampler._penalties.counts.table) == 2, "rows of the table are used again"


def test_a_row_with_nothing_left_fails_alone() -> None:
    """Only an end is allowed, and no end is allowed yet."""
    stuck = replace(PLAIN, allowed_token_ids=(2,), min_tokens=20, ignore_eos=False, logprobs=1)
    logits = random_logits(3)
    sampler, rows = started([PLAIN, stuck, options("all penalties")])
    got = sampler.sample(logits, rows)
    assert got.errors == [None, NOTHING_LEFT, None]
    assert got.logprobs == [None, None, None]
    without, others = started([PLAIN, PLAIN, options("all penalties")])
    expected = without.sample(logits, others).tokens
    assert got.tokens[[0, 2]].equal(expected[[0, 2]])


@pytest.mark.parametrize("ops", ["reference", "auto"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_leaves_rows_of_every_kind_alone(bad: float, ops: str) -> None:
    samplings = [replace(options(name), logprobs=2) for name in NAMES]
    logits = random_logits(len(NAMES))
    sampler, rows = started(samplings, ops=ops)
    expected = sampler.sample(logits, rows)
    for broken in range(len(NAMES)):
        poisoned = logits.clone()
        poisoned[broken, 5] = bad
        again, _ = started(samplings, ops=ops)
        got = again.sample(poisoned, rows)
        assert [error is not None for error in got.errors] == [row == broken for row in range(len(NAMES))]
        for row in range(len(NAMES)):
            if row != broken:
                assert got.tokens[row] == expected.tokens[row]
                assert got.logprobs[row] == expected.logprobs[row]


def test_nothing_is_copied_or_counted_where_no_row_uses_an_option() -> None:
    sampler, rows = started([PLAIN, replace(PLAIN, temperature=0.0, top_p=0.4)])
    logits = random_logits(2)
    assert before_temperature(sampler, logits, rows) is logits
    assert sampler._penalties.counts.table.numel() == 0


def test_case_c36_the_sampled_token_is_always_there_and_alternatives_are_sorted() -> None:
    """Also where it is unlikely, masked out of the model's own favourites, or special; and with no alternatives at all."""
    samplings = [replace(options(name), logprobs=count) for name in NAMES for count in (0, 5)]
    logits = random_logits(len(samplings))
    sampler, rows = started(samplings)
    got = sampler.sample(logits, rows)
    raw = logits.double().log_softmax(-1)
    for row, (sampling, found) in enumerate(zip(samplings, got.logprobs, strict=True)):
        assert found is not None
        assert abs(found.sampled - raw[row, got.tokens[row]].item()) < 1e-5
        assert len(found.top) == sampling.logprobs
        values = [value for _, value in found.top]
        assert values == sorted(values, reverse=True)
        assert [token for token, _ in found.top] == raw[row].topk(len(values)).indices.tolist()
