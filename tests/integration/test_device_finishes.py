"""However sequences end, and whenever: a runner that is one step ahead gives what one that waits gives, and nothing of them stays."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.types import AbortReason, FinishReason, Sampling
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.sampled_runs import RUNNER, Asked, Runs
from worker.execution.build import Device, Runner, build

CONFIG = replace(RUNNER, backend="reference", max_running=6, max_model_len=64, kv_bytes=1 << 20)
SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
LENGTH, HOT = 14, Sampling(temperature=0.9, seed=5, max_tokens=14, ignore_eos=True)
KINDS = (
    replace(HOT, temperature=0),
    HOT,
    replace(HOT, seed=8, frequency_penalty=0.8, repetition_penalty=1.2, logprobs=1),
    replace(HOT, seed=9, allowed_token_ids=tuple(range(20, 60)), bad_words=((30, 31),)),
)
PROMPTS = ([5, 6, 7], list(range(40, 58)), [9] * 33)


@dataclass(frozen=True)
class Plan:
    """A request: when it comes (engine steps), what it is, and how each choice ends: after its `end`-th token by a token that stops it, by
    its length, by the router that found a stop string, by a caller who leaves, or by one who leaves in the engine's step number `end`
    after it came, whatever has been computed by then.
    """

    comes: int
    kind: int
    prompt: int
    choices: int
    how: str
    end: int


PLANS = st.lists(
    st.builds(
        Plan,
        comes=st.integers(0, 12),
        kind=st.integers(0, len(KINDS) - 1),
        prompt=st.integers(0, len(PROMPTS) - 1),
        choices=st.integers(1, 3),
        how=st.sampled_from(["stop", "length", "string", "left", "left at any time"]),
        end=st.integers(1, LENGTH),
    ),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    return tiny_llama(**SMALL, num_key_value_heads=1, head_dim=16, vocab_size=67)[1]


@pytest.fixture(scope="module")
def runners(checkpoint: MemoryCheckpoint) -> Iterator[tuple[Runner, Runner]]:
    """One that waits for each step, and one that is one ahead, with recordings."""
    waits = build(checkpoint, CONFIG)
    ahead = build(checkpoint, CONFIG, device=Device(queue=LaggingQueue(), graphs=Recordings()))
    assert (waits.depth, ahead.depth) == (0, 1)
    yield waits, ahead
    waits.close()


@pytest.fixture(scope="module")
def free(runners: tuple[Runner, Runner]) -> dict[tuple[int, int], list[list[int]]]:
    """What each kind gives for each prompt when nothing ends it before its length."""
    found = {}
    for kind, sampling in enumerate(KINDS):
        for number, prompt in enumerate(PROMPTS):
            runs = Runs(runners[0], max_running=6, max_model_len=64)
            asked = runs.ask(prompt, sampling, n=3)
            runs.finish()
            found[kind, number] = asked.outputs
    return found


def sampling_of(plan: Plan, free: dict[tuple[int, int], list[list[int]]]) -> Sampling:
    sampling = KINDS[plan.kind]
    if plan.how == "length":
        return replace(sampling, max_tokens=plan.end)
    if plan.how == "stop":
        return replace(sampling, stop_token_ids=(free[plan.kind, plan.prompt][0][plan.end - 1],))
    return sampling


def played(runner: Runner, plans: list[Plan], free: dict[tuple[int, int], list[list[int]]], blocks: int) -> list[Asked]:
    runs = Runs(runner, max_running=6, max_model_len=64, blocks=blocks, step_tokens=40)
    coming, here, step = sorted(enumerate(plans), key=lambda pair: pair[1].comes), {}, 0
    while coming or runs.engine.has_work:
        while coming and coming[0][1].comes <= step:
            number, plan = coming.pop(0)
            here[number] = (runs.ask(PROMPTS[plan.prompt], sampling_of(plan, free), n=plan.choices), step)
        runs.step()
        step += 1
        for number, (asked, came) in here.items():
            leave(runs, plans[number], asked, step - came)
        runs.engine.check_integrity()
    stats = runs.engine.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.total_blocks)
    return [here[number][0] for number in range(len(plans))]


def leave(runs: Runs, plan: Plan, asked: Asked, age: int) -> None:
    reason = AbortReason.STOPPED if plan.how == "string" else AbortReason.CLIENT
    for index, outputs in enumerate(asked.outputs):
        if index in asked.finished:
            continue
        if (plan.how in ("string", "left") and len(outputs) >= plan.end) or (
            plan.how == "left at any time" and age == plan.end
        ):
            runs.abort(asked, index, reason)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plans=PLANS, blocks=st.sampled_from([9, 14, 40]))
def test_late_finishes_are_trimmed_whatever_ends_a_sequence(runners, free, plans, blocks) -> None:
    """With blocks for all, and so few that sequences are preempted."""
    waits, ahead = (played(runner, plans, free, blocks) for runner in runners)
    for plan, one, other in zip(plans, ahead, waits, strict=True):
        whole = free[plan.kind, plan.prompt]
        for index in range(plan.choices):
            got, want = one.outputs[index], other.outputs[index]
            assert got == whole[index][: len(got)], "a token that is not the sequence's own"
            if plan.how != "left at any time":  # who leaves when nothing tells it may be one step further along
                assert got == want
                assert one.logprobs[index] == other.logprobs[index]
                assert one.finished[index].reason == other.finished[index].reason
                assert one.finished[index].output_tokens == len(got)
            if plan.how == "length":
                assert (len(got), one.finished[index].reason) == (plan.end, FinishReason.LENGTH)


def test_a_stop_token_ends_each_choice_where_it_comes_first(runners, free) -> None:
    plan = Plan(comes=0, kind=1, prompt=0, choices=3, how="stop", end=4)
    (asked,) = played(runners[1], [plan], free, 40)
    token = sampling_of(plan, free).stop_token_ids[0]
    for got, whole in zip(asked.outputs, free[1, 0], strict=True):
        assert got == (whole[: whole.index(token) + 1] if token in whole else whole)
