"""Log-probabilities of prompts: every row once, in order, before the first token, whatever is cached, forked, preempted or aborted."""

from collections.abc import Sequence

import pytest

from shared.types import AbortReason, FinishReason
from tests.fakes.executor import scored
from tests.unit.scheduler.rig import Key, Rig

PROMPT = [(5 * i + 3) % 48 for i in range(70)]


def rows(rig: Rig, key: Key) -> Sequence[object]:
    return rig.prompts.get(rig.requests[key][0].seq, [])


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step_tokens", [3, 16, 200])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 33, 70])
def test_a_prompt_gets_every_row_whatever_the_chunks(depth: int, step_tokens: int, length: int) -> None:
    rig = Rig(depth=depth, step_tokens=step_tokens)
    (key,) = rig.submit(PROMPT[:length], prompt_logprobs=0)
    rig.run()
    rig.assert_as_alone([key])
    assert rows(rig, key) == scored(PROMPT[:length])


def test_case_c38_no_cached_block_is_read_while_rows_are_missing() -> None:
    rig = Rig()
    cold = rig.submit(PROMPT, prompt_logprobs=0)
    rig.run()
    warm, plain = rig.submit(PROMPT, prompt_logprobs=0), rig.submit(PROMPT)
    rig.run()
    rig.assert_as_alone([*cold, *warm, *plain])
    assert rows(rig, warm[0]) == rows(rig, cold[0]) == scored(PROMPT)
    assert rig.finished[warm[0]].cached_tokens == 0
    assert rig.finished[plain[0]].cached_tokens == 64, "what is computed again is found again by those who may read it"


@pytest.mark.parametrize("depth", [0, 1])
def test_who_is_preempted_reads_back_what_is_told_and_computes_the_rest(depth: int) -> None:
    rig = Rig(depth=depth, step_tokens=16)
    (key,) = rig.submit(PROMPT, prompt_logprobs=0)
    for _ in range(3):
        rig.step()
    told = len(rows(rig, key))
    assert 0 < told < 69
    (seq,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    planned = len(rig.executor.plans)
    rig.run()
    rig.assert_as_alone([key])
    assert rows(rig, key) == scored(PROMPT)
    again = [chunk.start for plan in rig.executor.plans[planned:] for chunk in plan.chunks]
    assert again[0] == told // 16 * 16


@pytest.mark.parametrize("depth", [0, 1])
def test_an_heir_goes_on_where_the_leader_left_off(depth: int) -> None:
    rig = Rig(depth=depth, step_tokens=16)
    first, second, third = rig.submit(PROMPT, n=3, prompt_logprobs=0)
    rig.step()
    rig.step()
    rig.abort([first])
    rig.run()
    rig.assert_as_alone([second, third])
    assert rows(rig, second) == scored(PROMPT)


def test_rows_that_cannot_be_worked_out_end_every_choice_of_that_request_alone() -> None:
    rig = Rig(max_running=5, step_tokens=200)
    neighbour = rig.submit(PROMPT[:20], prompt_logprobs=0, max_tokens=4)
    rig.step()
    broken = rig.submit(PROMPT[:30], n=2, prompt_logprobs=0)
    rig.executor.broken_prompts |= {0, 1, 2, 3, 4}
    rig.run()
    rig.assert_as_alone(neighbour)
    for key in broken:
        assert rig.finished[key].reason is FinishReason.ERROR
        assert "not finite" in rig.finished[key].message
        assert rig.tokens[key] == []
    rig.assert_whole()


def test_a_resumed_request_has_its_rows_already() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT, outputs=[(1, 2), ()], prompt_logprobs=0, max_tokens=5)
    rig.run()
    assert not rig.prompts
    assert all(rig.finished[key].reason is FinishReason.LENGTH for key in keys)


def test_an_abort_in_the_middle_tells_nothing_more() -> None:
    rig = Rig(step_tokens=16)
    (key,) = rig.submit(PROMPT, prompt_logprobs=0)
    rig.step()
    rig.abort([key], AbortReason.CLIENT)
    told = len(rows(rig, key))
    rig.run()
    assert len(rows(rig, key)) == told == 16
    rig.assert_whole()


def test_rows_in_flight_count_though_their_sequence_is_preempted_meanwhile() -> None:
    """Its sampled token counts too, and nothing would be computed again."""
    rig = Rig(depth=1)
    (key,) = rig.submit(PROMPT[:15], prompt_logprobs=0, max_tokens=3)
    plan = rig.scheduler.schedule(rig.now)
    assert plan is not None
    rig.pending.append((plan, rig.executor.execute(plan)))
    (seq,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.run()
    rig.assert_as_alone([key])
    rig.assert_scored(key)
