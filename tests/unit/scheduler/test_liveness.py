"""If KV is free and the queue is not empty, something is admitted in the next step."""

import pytest

from shared.types import Tenant
from tests.unit.scheduler.rig import Rig

BIG, SMALL = Tenant(id="big"), Tenant(id="small")


def test_a_watermark_never_keeps_out_what_runs_alone() -> None:
    rig = Rig(num_blocks=8, watermark=0.9)
    keys = rig.submit([1] * 120, max_tokens=5)
    rig.step()
    assert rig.scheduler.stats(rig.now).running == 1
    rig.run()
    rig.assert_as_alone(keys)


def test_a_watermark_keeps_blocks_for_those_that_run() -> None:
    rig = Rig(num_blocks=10, watermark=0.3)
    rig.submit([1] * 60, max_tokens=20)
    second = rig.submit([2] * 60, max_tokens=2)
    rig.step()
    rig.step()
    assert not rig.tokens[second[0]], "4 of 10 blocks are taken; 4 more would leave fewer than 3"
    rig.run()
    rig.assert_as_alone(second)


def test_choices_are_admitted_only_if_the_copies_of_their_partial_block_fit_too() -> None:
    rig = Rig(num_blocks=8, max_running=8)
    rig.submit([1] * 60, max_tokens=4)
    rig.step()
    three = rig.submit([2] * 40, n=3, max_tokens=2)
    rig.step()
    assert not rig.tokens[three[0]], "3 blocks and 2 copies are more than the 4 that are left"
    two = rig.submit([3] * 40, n=2, max_tokens=2)
    rig.step()
    assert rig.tokens[two[0]]
    rig.run()
    rig.assert_as_alone(two + three)


def test_the_copies_that_choices_will_need_are_given_to_no_one_else() -> None:
    rig = Rig(num_blocks=4, max_running=8, step_tokens=30)
    two = rig.submit([2] * 40, n=2, max_tokens=4)
    rig.step()
    rig.submit([3] * 4)
    rig.step()
    assert rig.scheduler.stats(rig.now).waiting == 1, "the last block is spoken for"
    rig.run()
    assert rig.scheduler.stats(rig.now).preemptions == 0
    rig.assert_as_alone(two)


def test_choices_that_have_not_had_their_turn_to_copy_keep_their_claim() -> None:
    rig = Rig(num_blocks=5, max_running=8, step_tokens=4)
    four = rig.submit([2] * 20, n=4, max_tokens=3)
    while not rig.tokens[four[0]]:
        rig.step()
    rig.submit([3] * 4)
    rig.step()
    assert len(rig.executor.plans[-1].copies) == 2, "the budget lets two of the four go on"
    assert rig.scheduler.stats(rig.now).waiting == 1, "one more copy is needed, of the one block that is left"
    rig.run()
    assert rig.scheduler.stats(rig.now).preemptions == 0
    rig.assert_as_alone(four)


def test_a_head_that_does_not_fit_lets_its_tenants_others_pass() -> None:
    rig = Rig(num_blocks=8)
    rig.submit([1] * 60, max_tokens=60)
    rig.step()
    large = rig.submit([2] * 80)
    small = rig.submit([3] * 4)
    rig.step()
    assert rig.tokens[small[0]]
    rig.run()
    rig.assert_as_alone(large)


def test_a_head_that_does_not_fit_lets_other_tenants_pass() -> None:
    rig = Rig(num_blocks=8)
    rig.submit([1] * 60, max_tokens=60, tenant=BIG)
    rig.step()
    rig.submit([2] * 80, tenant=BIG)
    small = rig.submit([3] * 4, tenant=SMALL)
    rig.step()
    assert rig.tokens[small[0]]


def test_nobody_passes_a_starving_head_and_it_gets_through() -> None:
    rig = Rig(num_blocks=8, starve_s=1.0, max_running=8)
    rig.submit([1] * 30, max_tokens=60)
    rig.step()
    large = rig.submit([2] * 100, max_tokens=2)
    for count in range(2000):
        if rig.tokens[large[0]]:
            break
        if count % 4 == 0 and rig.scheduler.stats(rig.now).waiting < 20:
            rig.submit([3 + count % 40] * 20, max_tokens=12)
        rig.step(seconds=0.05)
    assert rig.tokens[large[0]], "small ones passed it for ever"


def test_a_long_prefill_keeps_neither_decodes_nor_new_prompts_waiting() -> None:
    rig = Rig(step_tokens=32, max_running=4)
    decoding = rig.submit([1, 2], max_tokens=100)
    rig.step()
    long = rig.submit([5] * 240)
    rig.step()
    before = len(rig.tokens[decoding[0]])
    short = rig.submit([6] * 10)
    rig.step()
    assert rig.tokens[short[0]], "a short prompt passes"
    assert not rig.tokens[long[0]]
    assert len(rig.tokens[decoding[0]]) == before + 1
    rig.run()
    rig.assert_as_alone(long + short + decoding)


def test_a_long_prefill_gets_on_however_many_short_ones_come() -> None:
    rig = Rig(step_tokens=32, max_running=8, num_blocks=200, max_waiting=9)
    (long,) = rig.submit([5] * 240)
    steps = 0
    while not rig.tokens[long]:
        for number in range(3):
            rig.submit([(steps + 7 * number) % 40] * 14, max_tokens=1)
        rig.step()
        steps += 1
        assert steps <= 2 * 240 // 16, "half of each step is the oldest prefill's"
    rig.check()


def test_prefills_get_a_share_of_a_budget_that_decodes_would_fill() -> None:
    rig = Rig(step_tokens=4, max_running=5, num_blocks=64)
    decoding = [rig.submit([i, 2], max_tokens=200)[0] for i in range(4)]
    while not all(rig.tokens[key] for key in decoding):
        rig.step()
    before = [len(rig.tokens[key]) for key in decoding]
    late = rig.submit([9] * 40, max_tokens=2)
    for _ in range(12):
        rig.step()
    gained = [len(rig.tokens[key]) - count for key, count in zip(decoding, before, strict=True)]
    assert max(gained) - min(gained) <= 1, "decodes that do not all fit take turns"
    assert sum(gained) == 12 * 2
    for _ in range(10):
        rig.step()
    assert rig.tokens[late[0]]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("max_preemptions", [0, 3])
def test_a_pool_far_too_small_for_all_still_serves_all(depth: int, max_preemptions: int) -> None:
    rig = Rig(num_blocks=8, max_running=8, depth=depth, max_preemptions=max_preemptions)
    keys = [rig.submit([i] * 17, max_tokens=90)[0] for i in range(8)]
    rig.run()
    rig.assert_as_alone(keys)
    rig.assert_whole()


def test_choices_need_a_slot_each_and_wait_for_them_without_being_passed_for_ever() -> None:
    rig = Rig(max_running=3, starve_s=0.5)
    rig.submit([1, 2], max_tokens=30)
    rig.step()
    keys = rig.submit([4] * 20, n=3)
    for count in range(200):
        if rig.tokens[keys[0]]:
            break
        rig.submit([count % 40, 7], max_tokens=3)
        rig.step(seconds=0.05)
    assert rig.tokens[keys[0]]
    rig.run()
    rig.assert_as_alone(keys)


def test_more_in_flight_than_the_depth_is_a_fault_of_the_caller() -> None:
    rig = Rig(depth=0)
    rig.submit([1, 2])
    plan = rig.scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(RuntimeError, match="in flight"):
        rig.scheduler.schedule(0.0)
