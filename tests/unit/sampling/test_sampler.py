"""What a step's rows get: masks, logprobs and errors, each row for itself."""

import pytest
import torch

from kernels.backend import backend
from shared.types import Sampling
from worker.plan import SampleRow, SlotStart
from worker.sampling.sampler import Sampler
from worker.sampling.sending import at_once
from worker.sampling.state import SamplingState

VOCABULARY, EOS = 60, (2, 9)


def sampler(*samplings: Sampling, prompt_len: int = 10, vocab_size: int = VOCABULARY) -> Sampler:
    """A slot for each, as if they had just started on a prompt of tokens 0."""
    made = Sampler(
        backend(),
        state=SamplingState(len(samplings)),
        tokens=torch.zeros(len(samplings), 64, dtype=torch.int64),
        vocab_size=vocab_size,
        eos_token_ids=EOS,
    )
    for slot, sampling in enumerate(samplings):
        made.start(start(slot, sampling, prompt_len))
    return made


def start(slot: int, sampling: Sampling, prompt_len: int = 10) -> SlotStart:
    return SlotStart(slot=slot, tokens=(0,) * prompt_len, prompt_len=prompt_len, sampling=sampling, choice_index=0)


def rows(count: int, position: int = 10) -> list[SampleRow]:
    return [SampleRow(chunk=slot, slot=slot, position=position) for slot in range(count)]


def logits(count: int) -> torch.Tensor:
    return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 3


def greedy(**options) -> Sampling:
    return Sampling(temperature=0, max_tokens=9, **options)


def test_tokens_that_end_are_masked_until_min_tokens_are_out() -> None:
    peaked = torch.zeros(1, VOCABULARY)
    peaked[0, [2, 9, 30, 31]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    one = sampler(greedy(min_tokens=3, stop_token_ids=(30,)))
    assert [one.sample(peaked, rows(1, 10 + done)).tokens.item() for done in range(4)] == [31, 31, 31, 2]


def test_ignored_eos_is_no_end_and_stays_allowed() -> None:
    peaked = torch.zeros(1, VOCABULARY)
    peaked[0, [2, 30]] = torch.tensor([9.0, 10.0])
    one = sampler(greedy(min_tokens=3, stop_token_ids=(30,), ignore_eos=True))
    assert one.sample(peaked, rows(1)).tokens.item() == 2


def test_masks_hold_for_drawn_rows_too_and_ignore_tokens_that_the_head_lacks() -> None:
    one = sampler(Sampling(temperature=1.0, max_tokens=9000, min_tokens=8000, seed=3), vocab_size=3)
    flat = torch.full((1, 3), 0.0)
    drawn = {one.sample(flat, rows(1, at)).tokens.item() for at in range(10, 110)}
    assert drawn == {0, 1}


def test_logprobs_are_those_of_the_raw_logits() -> None:
    given = logits(3)
    hot = Sampling(temperature=5.0, top_k=2, max_tokens=9, seed=1, logprobs=4)
    got = sampler(hot, greedy(logprobs=0), greedy()).sample(given, rows(3))
    expected = given.double().log_softmax(-1)
    first, second, third = got.logprobs
    assert third is None
    assert second is not None
    assert second.top == ()
    assert abs(second.sampled - expected[1, got.tokens[1]].item()) < 1e-5
    assert first is not None
    assert abs(first.sampled - expected[0, got.tokens[0]].item()) < 1e-5
    best = expected[0].topk(4)
    assert [token for token, _ in first.top] == best.indices.tolist()
    assert torch.allclose(torch.tensor([v for _, v in first.top]).double(), best.values, atol=1e-5)


def test_the_sampled_token_has_its_logprob_though_it_was_masked_or_unlikely() -> None:
    given = torch.zeros(1, VOCABULARY)
    given[0, 2] = 50.0
    got = sampler(greedy(min_tokens=1, logprobs=1)).sample(given, rows(1)).logprobs[0]
    assert got is not None
    assert got.top[0][0] == 2
    assert got.sampled < -49


def test_equal_logprobs_come_in_order_of_tokens() -> None:
    given = torch.zeros(1, 20)
    got = sampler(greedy(logprobs=20)).sample(given, rows(1)).logprobs[0]
    assert got is not None
    assert [token for token, _ in got.top] == list(range(20))


def test_more_alternatives_than_tokens_give_all_tokens() -> None:
    got = sampler(greedy(logprobs=20)).sample(logits(1)[:, :7], rows(1)).logprobs[0]
    assert got is not None
    assert len(got.top) == 7


def test_a_row_that_is_not_finite_fails_alone() -> None:
    clean = logits(4)
    want = [greedy(logprobs=2), Sampling(temperature=1.0, max_tokens=9, seed=5), greedy(min_tokens=5), greedy()]
    expected = sampler(*want).sample(clean, rows(4))
    for value in (torch.nan, torch.inf, -torch.inf):
        for bad in range(4):
            broken = clean.clone()
            broken[bad, 17] = value
            got = sampler(*want).sample(broken, rows(4))
            assert [error is not None for error in got.errors] == [row == bad for row in range(4)]
            assert got.logprobs[bad] is None
            others = [row for row in range(4) if row != bad]
            assert got.tokens[others].tolist() == expected.tokens[others].tolist()
            assert 0 <= got.tokens[bad] < VOCABULARY


def test_a_slot_forgets_what_it_held_before() -> None:
    everything = Sampling(
        temperature=1.0,
        max_tokens=9,
        min_tokens=5,
        logprobs=3,
        seed=1,
        presence_penalty=2.0,
        repetition_penalty=9.0,
        logit_bias=((2, -100.0),),
        allowed_token_ids=(5,),
        bad_words=((2,),),
    )
    one = sampler(everything)
    peaked = torch.zeros(1, VOCABULARY)
    peaked[0, 2] = 9.0
    assert one.sample(peaked, rows(1)).tokens.item() == 5
    one.start(start(0, greedy()))
    got = one.sample(peaked, rows(1))
    assert (got.tokens.item(), got.logprobs) == (2, [None])


def test_seeds_use_all_64_bits_and_negative_ones_wrap() -> None:
    state = SamplingState(3)
    for slot, seed in enumerate((2**64 - 1, -1, 2**32)):
        state.start(start(slot, Sampling(temperature=1.0, max_tokens=9, seed=seed), 0))
    draw = state.draw([0, 1, 2], [4, 4, 4], at_once)()
    assert list(zip(draw.seed_low.tolist(), draw.seed_high.tolist(), strict=True)) == [
        (2**32 - 1, 2**32 - 1),
        (2**32 - 1, 2**32 - 1),
        (0, 1),
    ]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("temperature", [1e-300, 1e-50, 1e-40, 1e-38])
def test_the_smallest_temperatures_draw_the_most_likely_token(temperature: float, filters: dict[str, float]) -> None:
    """Logits over them are infinite in float32, and so are the temperatures' own inverses."""
    one = sampler(Sampling(temperature=temperature, max_tokens=9, seed=4, **filters))
    assert one.sample(logits(1), rows(1)).tokens.item() == logits(1).argmax().item()


def test_the_largest_temperatures_draw_evenly_from_what_is_allowed() -> None:
    allowed = tuple(range(20, 24))
    one = sampler(Sampling(temperature=1e300, max_tokens=500, seed=4, allowed_token_ids=allowed))
    drawn = [one.sample(logits(1), rows(1, 10 + done)).tokens.item() for done in range(60)]
    assert set(drawn) == set(allowed)
