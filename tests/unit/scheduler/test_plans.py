"""What stands in plans: forks and copies, chunks, one step ahead, table changes."""

import pytest

from shared.types import Tenant
from tests.unit.scheduler.rig import Rig

PROMPT = [(5 * i) % 47 for i in range(40)]


def test_choices_share_one_prefill_and_draw_their_first_tokens_from_it() -> None:
    rig = Rig()
    rig.submit(PROMPT, n=3)
    rig.step()
    (plan,) = rig.executor.plans
    assert [chunk.length for chunk in plan.chunks] == [40]
    assert [(row.chunk, row.position) for row in plan.samples] == [(0, 40)] * 3
    assert len({row.slot for row in plan.samples}) == 3
    assert [start.choice_index for start in plan.starts] == [0, 1, 2]
    assert len({write.blocks for write in plan.tables}) == 1, "all have the same blocks"
    assert rig.scheduler.stats(rig.now).free_blocks == rig.num_blocks - 3


@pytest.mark.parametrize("depth", [0, 1])
def test_the_partial_block_is_copied_for_all_choices_but_the_last_to_write(depth: int) -> None:
    rig = Rig(depth=depth)
    keys = rig.submit(PROMPT, n=3)
    rig.step()
    rig.step()
    plan = rig.executor.plans[1]
    shared = rig.executor.plans[0].tables[0].blocks[2]
    assert [copy.source for copy in plan.copies] == [shared, shared]
    assert len({copy.target for copy in plan.copies} | {shared}) == 3
    rig.run()
    assert not any(plan.copies for plan in rig.executor.plans[2:])
    rig.assert_as_alone(keys)


def test_a_copy_waits_until_the_step_that_first_writes() -> None:
    """The budget lets one choice after the other go on: each copies when its turn comes."""
    rig = Rig(step_tokens=1)
    keys = rig.submit(PROMPT[:20], n=2, max_tokens=4)
    rig.run()
    assert [len(plan.copies) for plan in rig.executor.plans if plan.copies] == [1]
    rig.assert_as_alone(keys)


def test_whole_blocks_need_no_copy() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT[:32], n=3)
    rig.run()
    assert not any(plan.copies for plan in rig.executor.plans)
    rig.assert_as_alone(keys)


def test_a_copy_that_is_not_needed_any_more_is_not_made() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT, n=2)
    rig.step()
    rig.abort(keys[:1])
    rig.run()
    assert not any(plan.copies for plan in rig.executor.plans)
    rig.assert_as_alone(keys[1:])


@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_a_prompt_is_computed_in_pieces_each_position_once(budget: int) -> None:
    rig = Rig(step_tokens=budget)
    keys = rig.submit(PROMPT, max_tokens=3)
    rig.run()
    computed = [p for plan in rig.executor.plans for c in plan.chunks for p in range(c.start, c.start + c.length)]
    assert computed == list(range(42))
    assert all(sum(chunk.length for chunk in plan.chunks) <= budget for plan in rig.executor.plans)
    rig.assert_as_alone(keys)


def test_one_step_ahead_nothing_is_computed_beyond_a_known_length() -> None:
    rig = Rig(depth=1)
    keys = rig.submit(PROMPT, max_tokens=5)
    rig.run()
    assert sum(chunk.length for plan in rig.executor.plans for chunk in plan.chunks) == 40 + 4
    rig.assert_as_alone(keys)


def test_one_step_ahead_the_next_position_is_planned_before_its_token_is_known() -> None:
    rig = Rig(depth=1)
    keys = rig.submit(PROMPT, max_tokens=5)
    rig.step()
    rig.step()
    assert rig.executor.plans[1].chunks[0].start == 40
    assert len(rig.tokens[keys[0]]) == 1


def test_one_step_ahead_the_token_after_a_stop_is_dropped() -> None:
    rig = Rig(depth=1)
    probe = rig.request(PROMPT, max_tokens=9)
    rig.requests[0, probe.choices[0].handle] = (probe, probe.choices[0])
    third = rig.expected((0, probe.choices[0].handle))[2]
    keys = rig.submit(PROMPT, max_tokens=9, stop_token_ids=(third,))
    rig.run()
    rig.assert_as_alone(keys)
    finished = rig.finished[keys[0]]
    assert finished.stop_token == third
    assert rig.tokens[keys[0]][-1] == third
    sampled = sum(len(plan.samples) for plan in rig.executor.plans)
    assert sampled == len(rig.tokens[keys[0]]) + 1
    rig.assert_whole()


def test_one_step_ahead_a_preempted_choice_keeps_the_token_in_flight() -> None:
    rig = Rig(depth=1)
    keys = rig.submit(PROMPT, max_tokens=9)
    rig.step()
    rig.step()
    (seq,) = rig.scheduler._residents.running
    assert seq.unknown == 1
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.check()
    known = len(rig.tokens[keys[0]])
    assert rig.scheduler.schedule(rig.now) is None, "it waits for its token"
    rig.retire()
    assert len(rig.tokens[keys[0]]) == known + 1
    rig.run()
    restart = rig.executor.plans[-1 - (9 - known - 2)].starts[0]
    assert list(restart.tokens) == PROMPT + rig.tokens[keys[0]][: known + 1]
    assert restart.prompt_len == 40
    rig.assert_as_alone(keys)
    assert rig.finished[keys[0]].preemptions == 1


def test_a_preempted_choice_that_its_token_in_flight_ends_does_not_run_again() -> None:
    rig = Rig(depth=1)
    keys = rig.submit(PROMPT, max_tokens=1)
    rig.step()
    (seq,) = rig.scheduler._residents.running
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.run()
    assert len(rig.executor.plans) == 1
    rig.assert_as_alone(keys)
    rig.assert_whole()


@pytest.mark.parametrize("depth", [0, 1])
def test_two_that_compute_the_same_end_up_with_the_same_blocks(depth: int) -> None:
    rig = Rig(depth=depth, step_tokens=200)
    keys = rig.submit(PROMPT, max_tokens=20) + rig.submit(PROMPT, max_tokens=20)
    for _ in range(4):
        rig.step()
    assert {chunk.start for chunk in rig.executor.plans[0].chunks} == {0}, "they came together, so neither hit"
    assert rig.scheduler.stats(rig.now).free_blocks == rig.num_blocks - 4, "two whole blocks are shared now"
    patches = [write for plan in rig.executor.plans[1:] for write in plan.tables if write.first < 2]
    assert [write.first for write in patches] == [0, 1]
    assert {write.slot for write in patches} == {rig.executor.plans[0].chunks[1].slot}
    rig.run()
    rig.assert_as_alone(keys)


def test_an_error_of_one_row_ends_that_choice_alone() -> None:
    rig = Rig()
    keys = rig.submit(PROMPT, n=2, max_tokens=6) + rig.submit([1, 2], max_tokens=6)
    rig.step()
    rig.executor.broken_rows = {rig.executor.plans[0].samples[0].slot}
    rig.step()
    rig.run()
    assert rig.finished[keys[0]].reason.value == "error"
    assert "finite" in rig.finished[keys[0]].message
    assert rig.finished[keys[0]].output_tokens == 1
    rig.assert_as_alone(keys[1:])


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_step_ends_its_sequences_and_no_others(depth: int) -> None:
    rig = Rig(max_running=2, depth=depth)
    keys = rig.submit(PROMPT, n=2, max_tokens=6)
    waiting = rig.submit([1, 2], tenant=Tenant(id="other"))
    plan = rig.scheduler.schedule(rig.now)
    assert plan is not None
    rig.take(rig.scheduler.fail(plan, "device lost", rig.now))
    assert {rig.finished[key].message for key in keys} == {"device lost"}
    rig.assert_as_alone([]) if waiting[0] not in rig.finished else pytest.fail("it had no part in the step")
    rig.run()
    rig.assert_as_alone(waiting)
    rig.assert_whole()


def test_steps_are_retired_in_order_and_results_must_fit() -> None:
    rig = Rig(depth=1)
    keys = rig.submit(PROMPT, max_tokens=5)
    rig.step()
    plan = rig.scheduler.schedule(rig.now)
    assert plan is not None
    pending = rig.executor.execute(plan)
    with pytest.raises(ValueError, match="oldest"):
        rig.scheduler.apply(plan, pending.result(), rig.now)
    oldest = rig.pending[0][0]
    with pytest.raises(ValueError, match="samples"):
        rig.scheduler.apply(oldest, type(pending.outcome)(tokens=[], logprobs=[], errors=[]), rig.now)
    rig.check()
    rig.pending.append((plan, pending))
    rig.retire()
    rig.run()
    rig.assert_as_alone(keys)
