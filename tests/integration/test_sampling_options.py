"""Sampling options through the engine and a tiny model: the same tokens alone, in company, chunked, cached, preempted and resumed."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from shared.types import FinishReason, RejectCode, Sampling
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.sampled_runs import RUNNER, SLOTS, Asked, Runs
from worker.execution.build import Device, ModelRunner, build
from worker.models.checkpoint import Checkpoint

VOCABULARY = 199
PLAIN = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
MIXED = {
    "greedy": PLAIN,
    "greedy with penalties": replace(PLAIN, presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4),
    "presence": replace(PLAIN, temperature=1.1, seed=1, presence_penalty=2.0, logprobs=2),
    "frequency": replace(PLAIN, temperature=0.9, seed=2, frequency_penalty=-1.5),
    "repetition": replace(PLAIN, temperature=0.7, seed=3, repetition_penalty=1.6, logprobs=0),
    "allowed": replace(PLAIN, temperature=1.0, seed=4, allowed_token_ids=tuple(range(40, 60)), frequency_penalty=2.0),
    "bad words": replace(PLAIN, temperature=1.0, seed=5, bad_words=((9,), (50, 51), (60, 61, 62)), top_k=3),
    "bias": replace(PLAIN, temperature=1.0, seed=6, logit_bias=((11, 8.0), (12, 7.5), (2, -100.0)), logprobs=3),
    "min tokens": replace(PLAIN, temperature=1.5, seed=7, min_tokens=20, ignore_eos=False, stop_token_ids=(33, 44)),
    "everything": replace(
        PLAIN,
        temperature=0.8,
        top_p=0.9,
        min_p=0.01,
        seed=8,
        presence_penalty=0.4,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        logit_bias=((70, 6.0),),
        allowed_token_ids=tuple(range(30, 120)),
        bad_words=((70, 70),),
        min_tokens=5,
        ignore_eos=False,
    ),
}


def prompts(count: int, longest: int = 60) -> list[list[int]]:
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
    return [torch.randint(3, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]


PROMPTS = prompts(len(MIXED))


@pytest.fixture(scope="module")
def tiny() -> tuple[torch.nn.Module, MemoryCheckpoint]:
    return tiny_llama()


KINDS = {
    "depth0": {},
    "depth1": {"depth": 1},
    "reference": {"backend": "reference"},
    "device": {"backend": "reference"},
}


@pytest.fixture(scope="module", params=KINDS)
def runner(request: pytest.FixtureRequest, tiny: tuple[torch.nn.Module, MemoryCheckpoint]) -> Iterator[ModelRunner]:
    device = Device(queue=LaggingQueue(), graphs=Recordings()) if request.param == "device" else None
    made = build(tiny[1], replace(RUNNER, **KINDS[request.param]), device=device)
    made._pool.fill(torch.nan)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[Asked]:
    """What each of MIXED gives by itself."""
    result = []
    for prompt, sampling in zip(PROMPTS, MIXED.values(), strict=True):
        runs = Runs(runner, prefix_cache=False)
        result.append(runs.ask(prompt, sampling))
        runs.finish()
    return result


def assert_alike(got: list[Asked], expected: list[Asked]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs
        assert one.end.reason == other.end.reason


def test_options_do_what_they_say(alone: list[Asked]) -> None:
    by_name = dict(zip(MIXED, alone, strict=True))
    assert set(by_name["allowed"].tokens) <= set(range(40, 60))
    words = by_name["bad words"].tokens
    assert 9 not in words
    assert (50, 51) not in set(pairwise(words))
    assert set(by_name["bias"].tokens) & {11, 12}
    ended = by_name["min tokens"]
    assert not {2, 33, 44} & set(ended.tokens[:20])
    free, held = by_name["greedy"], by_name["greedy with penalties"]
    assert len(set(held.tokens)) / len(held.tokens) > 0.9, "penalised tokens hardly come again"
    assert len(free.tokens) == len(held.tokens) == 24


@pytest.mark.parametrize("order", [1, 3, 7])
def test_a_batch_of_all_kinds_gives_each_what_it_gets_alone(
    runner: ModelRunner, alone: list[Asked], order: int
) -> None:
    runs = Runs(runner)
    turns = [i * order % len(MIXED) for i in range(len(MIXED))]
    asked = {i: runs.ask(PROMPTS[i], list(MIXED.values())[i]) for i in turns}
    runs.finish()
    assert_alike([asked[i] for i in range(len(MIXED))], alone)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_chunks_change_nothing(runner: ModelRunner, alone: list[Asked], size: int) -> None:
    runs = Runs(runner, step_tokens=max(size, len(MIXED) + 1), prefill_floor=size)
    asked = [runs.ask(prompt, sampling) for prompt, sampling in zip(PROMPTS, MIXED.values(), strict=True)]
    runs.finish()
    assert_alike(asked, alone)


def test_preemption_changes_nothing(runner: ModelRunner, alone: list[Asked]) -> None:
    """The pool holds a third of what all of them want: counts and bad words are worked out anew for who comes back."""
    runs = Runs(runner, blocks=12, max_running=8)
    asked = [runs.ask(prompt, sampling) for prompt, sampling in zip(PROMPTS, MIXED.values(), strict=True)]
    runs.finish()
    assert sum(one.end.preemptions for one in asked) > 0, "nothing was preempted"
    assert_alike(asked, alone)


@pytest.mark.parametrize("given", [1, 7, 23])
def test_a_resumed_choice_goes_on_as_if_it_had_never_stopped(
    runner: ModelRunner, alone: list[Asked], given: int
) -> None:
    runs = Runs(runner)
    pairs = []
    for whole, (prompt, sampling) in zip(alone, zip(PROMPTS, MIXED.values(), strict=True), strict=True):
        if len(whole.tokens) > given:
            pairs.append((whole, runs.ask(prompt, sampling, given=[whole.tokens[:given]])))
    runs.finish()
    assert len(pairs) > len(MIXED) - 3
    for whole, resumed in pairs:
        assert resumed.tokens == whole.tokens[given:]
        assert resumed.logprobs[0] == whole.logprobs[0][given:]
        assert resumed.end.output_tokens == len(whole.tokens)


@pytest.mark.parametrize("name", ["presence", "everything"])
def test_sixty_four_choices_differ_and_each_is_the_same_in_a_smaller_family(runner: ModelRunner, name: str) -> None:
    sampling = replace(MIXED[name], temperature=1.5, max_tokens=12)
    many, again = Runs(runner), Runs(runner, blocks=30)
    family = many.ask(PROMPTS[2], sampling, n=64)
    many.finish()
    small = again.ask(PROMPTS[2], sampling, n=5)
    again.finish()
    assert len({tuple(child) for child in family.outputs}) == 64
    assert small.outputs == family.outputs[:5]
    other = Runs(runner)
    elsewhere = other.ask(PROMPTS[2], replace(sampling, seed=99), n=64)
    other.finish()
    assert not {tuple(child) for child in family.outputs} & {tuple(child) for child in elsewhere.outputs}


def test_more_choices_than_slots_are_refused_by_name(runner: ModelRunner) -> None:
    asked = Runs(runner).ask(PROMPTS[0], PLAIN, n=SLOTS + 1)
    assert asked.rejected is not None
    assert (asked.rejected.code, asked.rejected.param) == (RejectCode.INVALID, "n")


OUTSIDE = {
    "logit_bias": {"logit_bias": ((VOCABULARY, 1.0),)},
    "stop_token_ids": {"stop_token_ids": (VOCABULARY,)},
    "allowed_token_ids": {"allowed_token_ids": (3, 2**31)},
    "bad_words": {"bad_words": ((1,), (2, VOCABULARY))},
}


@pytest.mark.parametrize("param", OUTSIDE)
def test_case_c26_a_token_outside_the_vocabulary_is_refused_and_neighbours_do_not_notice(
    runner: ModelRunner, alone: list[Asked], param: str
) -> None:
    runs = Runs(runner)
    half = len(MIXED) // 2
    pairs = list(zip(PROMPTS, MIXED.values(), strict=True))
    asked = [runs.ask(prompt, sampling) for prompt, sampling in pairs[:half]]
    runs.step(3)
    wrong = runs.ask([5, 6], replace(PLAIN, **OUTSIDE[param]))
    asked += [runs.ask(prompt, sampling) for prompt, sampling in pairs[half:]]
    runs.finish()
    assert wrong.rejected is not None
    assert (wrong.rejected.code, wrong.rejected.param) == (RejectCode.INVALID, param)
    assert str(VOCABULARY - 1) in wrong.rejected.message
    assert_alike(asked, alone)


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": (5, 6), "bad_words": ((5,), (6,))},
        {"allowed_token_ids": (2, 30), "stop_token_ids": (30,), "min_tokens": 1, "ignore_eos": False},
    ],
    ids=["bad words", "ends"],
)
def test_options_that_leave_nothing_to_sample_are_refused_by_name(runner: ModelRunner, options: dict[str, Any]) -> None:
    asked = Runs(runner).ask(PROMPTS[0], replace(PLAIN, **options))
    assert asked.rejected is not None
    assert (asked.rejected.code, asked.rejected.param) == (RejectCode.INVALID, "allowed_token_ids")


def test_a_choice_with_nothing_left_to_sample_ends_alone_and_by_name(runner: ModelRunner, alone: list[Asked]) -> None:
    """After the first token, the only one allowed would complete a bad word."""
    runs = Runs(runner)
    asked = [runs.ask(prompt, sampling) for prompt, sampling in zip(PROMPTS, MIXED.values(), strict=True)]
    stuck = runs.ask(PROMPTS[0], replace(PLAIN, allowed_token_ids=(5,), bad_words=((5, 5),)))
    runs.finish()
    assert stuck.tokens == [5]
    assert (stuck.end.reason, stuck.end.param) == (FinishReason.ERROR, "allowed_token_ids")
    assert "no token is left" in stuck.end.message
    assert_alike(asked, alone)


def test_a_token_that_the_head_has_not_may_be_named_by_the_model_alone(
    tiny: tuple[torch.nn.Module, MemoryCheckpoint],
) -> None:
    """A model's end token outside its head is never sampled, and masking it harms nobody."""
    checkpoint = MemoryCheckpoint(tiny[1].config, tiny[1]._tensors, eos=(2, VOCABULARY + 5))
    runs = Runs(build(checkpoint, RUNNER), eos_token_ids=(2, VOCABULARY + 5))
    asked = runs.ask(PROMPTS[0], replace(PLAIN, ignore_eos=False, min_tokens=10))
    runs.finish()
    assert asked.end.reason in (FinishReason.STOP, FinishReason.LENGTH)


def poisoned(checkpoint: MemoryCheckpoint, token: int) -> Checkpoint:
    """Whatever sees this token computes NaN."""
    table = checkpoint.tensor("model.embed_tokens.weight").clone()
    table[token] = torch.nan
    return checkpoint.replacing("model.embed_tokens.weight", table)


def test_a_choice_whose_logits_are_nan_fails_alone_and_its_neighbours_are_bit_equal(
    tiny: tuple[torch.nn.Module, MemoryCheckpoint],
) -> None:
    poison = 150
    runner = build(poisoned(tiny[1], poison), RUNNER)
    never = ((poison, -100.0),)
    pairs = [
        ([token for token in prompt if token != poison] or [4], replace(sampling, logit_bias=never))
        for prompt, sampling in zip(PROMPTS, MIXED.values(), strict=True)
    ]
    quiet = Runs(runner)
    expected = [quiet.ask(prompt, sampling) for prompt, sampling in pairs]
    quiet.finish()
    runs = Runs(runner)
    asked = [runs.ask(prompt, sampling) for prompt, sampling in pairs[:5]]
    sick = [runs.ask([5, poison, 7], sampling, n=2) for sampling in (PLAIN, MIXED["everything"])]
    sick.append(runs.ask([5, poison, 7], replace(PLAIN, prompt_logprobs=1)))
    asked += [runs.ask(prompt, sampling) for prompt, sampling in pairs[5:]]
    runs.finish()
    for one in sick:
        assert [end.reason for end in one.finished.values()] == [FinishReason.ERROR] * len(one.outputs)
        assert all("not finite" in end.message and not end.param for end in one.finished.values())
        assert not any(one.outputs)
    assert_alike(asked, expected)


@torch.inference_mode()
def judged(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """transformers' log-probabilities after each position but the last."""
    return model(torch.tensor([prompt])).logits[0, :-1].double().log_softmax(-1)


def assert_judged(model: torch.nn.Module, asked: Asked) -> None:
    prompt = list(asked.request.prompt_tokens)
    assert len(asked.prompt) == len(prompt) - 1
    wanted = asked.request.sampling.prompt_logprobs
    assert wanted is not None
    if len(prompt) == 1:
        return
    expected = judged(model, prompt)
    for row, (token, found) in enumerate(zip(prompt[1:], asked.prompt, strict=True)):
        assert abs(found.sampled - expected[row, token].item()) < 1e-4
        assert len(found.top) == wanted
        for other, value in found.top:
            assert abs(value - expected[row, other].item()) < 1e-4
        best = expected[row].topk(max(wanted, 1)).values[:wanted]
        assert torch.allclose(torch.tensor([value for _, value in found.top]).double(), best, atol=1e-4)


LONG = prompts(9, longest=150)
LONG[4] = LONG[3] + LONG[4]
LONG[5] = [7]


@pytest.mark.parametrize("wanted", [0, 1, 20])
def test_prompt_logprobs_are_those_of_transformers(
    runner: ModelRunner, tiny: tuple[torch.nn.Module, MemoryCheckpoint], wanted: int
) -> None:
    runs = Runs(runner)
    asked = [runs.ask(prompt, replace(PLAIN, max_tokens=3, prompt_logprobs=wanted)) for prompt in LONG]
    runs.finish()
    for one in asked:
        assert_judged(tiny[0], one)


@pytest.mark.parametrize("step_tokens", [2048, 37, 16])
@pytest.mark.parametrize("order", [1, 4])
def test_case_c38_prompt_logprobs_are_the_same_cold_and_cached_chunked_and_whole_in_any_order(
    runner: ModelRunner, tiny: tuple[torch.nn.Module, MemoryCheckpoint], step_tokens: int, order: int
) -> None:
    """Exactly, on this device; and never of what was not written: KV memory begins as NaN."""
    runner._pool.fill(torch.nan)
    sampling = replace(PLAIN, max_tokens=4, prompt_logprobs=2, logprobs=2)
    cold = []
    for prompt in LONG:
        lone = Runs(runner, prefix_cache=False)
        cold.append(lone.ask(prompt, sampling))
        lone.finish()
    runs = Runs(runner, step_tokens=step_tokens)
    for prompt in LONG[:5]:
        runs.ask(prompt, PLAIN)  # fills the cache
    runs.finish()
    turns = [i * order % len(LONG) for i in range(len(LONG))]
    warm = {i: runs.ask(LONG[i], sampling) for i in turns}
    reader = runs.ask(LONG[4], PLAIN)
    runs.finish()
    assert reader.end.cached_tokens > 0, "the cache was on"
    for i, expected in enumerate(cold):
        assert warm[i].prompt == expected.prompt
        assert_judged(tiny[0], warm[i])
        assert warm[i].tokens == expected.tokens
        assert warm[i].logprobs == expected.logprobs


def test_prompt_logprobs_survive_preemption_and_a_leader_that_leaves(
    runner: ModelRunner, tiny: tuple[torch.nn.Module, MemoryCheckpoint]
) -> None:
    runs = Runs(runner, blocks=14, max_running=8, step_tokens=20)
    sampling = replace(PLAIN, max_tokens=30, prompt_logprobs=1)
    asked = [runs.ask(prompt[:70], sampling) for prompt in LONG]
    family = runs.ask(LONG[4][:50], sampling, n=3)
    while not family.prompt:
        runs.step()
    runs.abort(family, 0)
    runs.finish()
    assert sum(one.end.preemptions for one in asked) > 0, "nothing was preempted"
    for one in (*asked, family):
        assert_judged(tiny[0], one)


def test_prompt_logprobs_take_tiles_of_bounded_size(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a tile, the rows are the same, bit for bit; and no call for logits has more rows than one holds."""
    whole = Runs(runner)
    expected = whole.ask(LONG[4], replace(PLAIN, max_tokens=1, prompt_logprobs=3))
    whole.finish()
    sizes: list[int] = []
    scorer, logits = runner._scorer, runner._scorer._logits

    def counted(hidden: torch.Tensor, rows: torch.Tensor, step: object) -> torch.Tensor:
        sizes.append(len(rows))
        return logits(hidden, rows, step)

    monkeypatch.setattr(scorer, "_logits", counted)
    monkeypatch.setattr(scorer, "_rows", 7)
    tiled = Runs(runner)
    got = tiled.ask(LONG[4], replace(PLAIN, max_tokens=1, prompt_logprobs=3))
    tiled.finish()
    assert max(sizes) == 7
    assert got.prompt == expected.prompt
