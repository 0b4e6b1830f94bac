"""Tenants: service by weight, shares of slots and KV, classes, ageing."""

import pytest

from shared.types import Tenant
from tests.unit.scheduler.rig import Key, Rig
from worker.scheduler.fairness import RECENT_S

ONE, THREE = Tenant(id="one", salt=b"1"), Tenant(id="three", weight=3.0, salt=b"3")


def keep_waiting(rig: Rig, tenant: Tenant, keys: list[Key], *, at_least: int = 4, **options: object) -> None:
    """Always `at_least` requests of the tenant that have not ended."""
    open_ = [key for key in keys if key not in rig.finished]
    for number in range(at_least - len(open_)):
        fields = {"max_tokens": 6} | options
        keys += rig.submit([(len(keys) + number) % 40] * 10, tenant=tenant, **fields)  # type: ignore[arg-type]


def served(rig: Rig, keys: list[Key]) -> int:
    return sum(len(rig.tokens[key]) for key in keys)


@pytest.mark.parametrize("depth", [0, 1])
def test_backlogged_tenants_are_served_by_weight(depth: int) -> None:
    rig = Rig(max_running=4, depth=depth, check=False, target_wait_s=1e9, starve_s=0.0)
    one: list[Key] = []
    three: list[Key] = []
    for _ in range(1500):
        keep_waiting(rig, ONE, one, at_least=8)
        keep_waiting(rig, THREE, three, at_least=8)
        rig.step()
    ratio = served(rig, three) / served(rig, one)
    assert 2.7 < ratio < 3.3


def test_equal_tenants_get_the_same_though_one_asks_much_more() -> None:
    rig = Rig(max_running=4, check=False)
    greedy, modest = Tenant(id="greedy"), Tenant(id="modest")
    many: list[Key] = []
    few: list[Key] = []
    for _ in range(1000):
        keep_waiting(rig, greedy, many, at_least=40)
        keep_waiting(rig, modest, few, at_least=6)
        rig.step()
    assert 0.85 < served(rig, many) / served(rig, few) < 1.18


def test_nobody_saves_up_service_by_being_idle() -> None:
    rig = Rig(max_running=6, check=False, tenant_share=1.0, starve_s=0.0, target_wait_s=1e9)
    busy, late = Tenant(id="busy"), Tenant(id="late")
    first: list[Key] = []
    rig.submit([1, 2], tenant=late)
    for _ in range(400):
        keep_waiting(rig, busy, first, at_least=12)
        rig.step()
    before = served(rig, first)
    second: list[Key] = []
    for _ in range(200):
        keep_waiting(rig, busy, first, at_least=12)
        keep_waiting(rig, late, second, at_least=12)
        rig.step()
    assert 0.7 < (served(rig, first) - before) / served(rig, second) < 1.4


@pytest.mark.parametrize("depth", [0, 1])
def test_one_of_several_tenants_never_gets_more_than_seven_eighths(depth: int) -> None:
    rig = Rig(max_running=16, num_blocks=64, depth=depth)
    big, small = Tenant(id="big", salt=b"b"), Tenant(id="small", salt=b"s")
    small_keys: list[Key] = []
    big_keys: list[Key] = []
    for _ in range(300):
        keep_waiting(rig, small, small_keys, at_least=1)
        keep_waiting(rig, big, big_keys, at_least=40, max_tokens=100)
        rig.step()
        account = next(a for a in rig.scheduler._accounts.active if a.tenant_id == "big")
        assert account.slots <= 14
        assert account.holder.blocks <= 56
    assert any(key in rig.finished for key in big_keys)


def test_a_tenant_alone_may_have_all_slots() -> None:
    rig = Rig(max_running=8)
    for _ in range(8):
        rig.submit([1, 2], max_tokens=20)
    rig.step()
    assert rig.scheduler.stats(rig.now).running == 8


def test_what_a_tenant_took_while_alone_is_taken_back_for_the_first_of_another() -> None:
    rig = Rig(max_running=8)
    first = [rig.submit([i, 2], max_tokens=100, tenant=ONE)[0] for i in range(8)]
    rig.step()
    rig.step()
    other = rig.submit([5, 6], tenant=THREE)
    rig.step()
    rig.step()
    assert rig.tokens[other[0]], "it does not wait for the end of any of the eight"
    assert rig.scheduler.stats(rig.now).preemptions == 1
    rig.run()
    rig.assert_as_alone(first + other)
    assert rig.finished[first[-1]].preemptions == 1, "the newest went"


def test_a_request_larger_than_its_tenants_share_runs_when_it_is_all_the_tenant_has() -> None:
    rig = Rig(num_blocks=16, starve_s=0.2)
    small: list[Key] = []
    keep_waiting(rig, THREE, small, at_least=2)
    rig.step()
    large = rig.submit([2] * 230, tenant=ONE, max_tokens=3)
    for _ in range(400):
        if large[0] in rig.finished:
            break
        keep_waiting(rig, THREE, small, at_least=2)
        rig.step()
    rig.assert_as_alone(large)


def test_a_higher_class_goes_first() -> None:
    rig = Rig(max_running=1)
    low, high = Tenant(id="low", top_class=2), Tenant(id="high", top_class=0)
    rig.submit([1, 2], tenant=high, max_tokens=3)
    rig.step()
    later = rig.submit([1, 2], tenant=low)
    sooner = rig.submit([3, 4], tenant=high)
    rig.run()
    order = list(rig.finished)
    assert order.index(sooner[0]) < order.index(later[0])


def test_c21_a_higher_class_does_not_wait_behind_slots_full_of_a_lower_one() -> None:
    rig = Rig(max_running=3, tenant_share=1.0)
    low, high = Tenant(id="low", top_class=1), Tenant(id="high", top_class=0)
    lows = [rig.submit([i, 2], tenant=low, max_tokens=100)[0] for i in range(3)]
    rig.step()
    (urgent,) = rig.submit([8, 9], tenant=high)
    rig.step()
    rig.step()
    assert rig.tokens[urgent]
    rig.run()
    rig.assert_as_alone([*lows, urgent])
    assert [rig.finished[key].preemptions for key in lows] == [0, 0, 1]


def test_c21_a_starving_head_ages_up_and_gets_through_a_flood_of_a_higher_class() -> None:
    rig = Rig(max_running=1, starve_s=1.0)
    low, high = Tenant(id="low", top_class=2), Tenant(id="high", top_class=0)
    flood: list[Key] = []
    keep_waiting(rig, high, flood)
    rig.step()
    (patient,) = rig.submit([1, 2], tenant=low, max_tokens=2)
    waited = 0.0
    while patient not in rig.finished:
        keep_waiting(rig, high, flood)
        rig.step(seconds=0.1)
        waited += 0.1
        assert waited < 20, "it never got through"
    assert waited > 1.5, "not before it had aged"
    rig.assert_as_alone([patient])


def test_a_head_that_waited_its_target_preempts_once_the_newest_of_the_most_served_tenant() -> None:
    rig = Rig(max_running=2, target_wait_s=1.0, tenant_share=1.0)
    served_, waiting = Tenant(id="served"), Tenant(id="waiting")
    rig.submit([1], tenant=waiting, max_tokens=200)
    (old,) = rig.submit([1, 2], tenant=served_, max_tokens=200)
    for _ in range(90):
        rig.step(seconds=0.001)
    assert rig.scheduler.stats(rig.now).preemptions == 0
    third = Tenant(id="third")
    (head,) = rig.submit([5, 6], tenant=third, max_tokens=2)
    rig.step(seconds=0.5)
    assert rig.scheduler.stats(rig.now).preemptions == 0, "its target has not come"
    account = next(a for a in rig.scheduler._accounts.active if a.tenant_id == "served")
    account.served += 10_000  # it has had far more than the others
    rig.step(seconds=0.6)
    rig.step(seconds=0.001)
    assert rig.tokens[head]
    assert rig.scheduler.stats(rig.now).preemptions == 1
    rig.run()
    assert rig.finished[old].preemptions == 1
    rig.assert_as_alone([old, head])


def test_a_request_preempts_for_having_waited_only_once() -> None:
    rig = Rig(max_running=1, target_wait_s=1.0, tenant_share=1.0, starve_s=0.0)
    served_, other = Tenant(id="served"), Tenant(id="other")
    for number in range(2):
        rig.submit([1, number], tenant=served_, max_tokens=200)
    rig.step()
    account = next(iter(rig.scheduler._accounts.active))
    account.served += 10_000
    (head,) = rig.submit([5, 6], tenant=other, max_tokens=200)
    other_account = next(a for a in rig.scheduler._accounts.active if a is not account)
    other_account.served = 0.0
    rig.step(seconds=1.1)
    rig.step()
    assert rig.tokens[head]
    assert rig.scheduler.stats(rig.now).preemptions == 1
    (seq,) = rig.scheduler._residents.running
    other_account.served = 20_000.0
    rig.scheduler._lifecycle.preempt(seq, rig.now)
    rig.step()
    other_account.served = 0.0
    account.served = 30_000.0
    for _ in range(5):
        rig.step(seconds=1.1)
    assert rig.scheduler.stats(rig.now).preemptions == 2, "the one that it caused, and its own"


def test_equal_tenants_do_not_keep_preempting_each_other_for_having_waited() -> None:
    rig = Rig(max_running=4, target_wait_s=0.05, tenant_share=1.0, check=False)
    left, right = Tenant(id="left"), Tenant(id="right")
    keys: tuple[list[Key], list[Key]] = ([], [])
    for _ in range(400):
        keep_waiting(rig, left, keys[0], at_least=8, max_tokens=5)
        keep_waiting(rig, right, keys[1], at_least=8, max_tokens=9)
        rig.step()
    ended = sum(key in rig.finished for key in keys[0] + keys[1])
    assert ended > 150
    assert rig.scheduler.stats(rig.now).preemptions <= 0.02 * ended


def test_a_flood_leaves_the_slots_that_others_have_needed_lately() -> None:
    rig = Rig(max_running=16, check=False)
    flood, modest = Tenant(id="flood"), Tenant(id="modest")
    many: list[Key] = []
    for _ in range(4):
        rig.submit([1, 2], max_tokens=8, tenant=modest)
    rig.run()
    most = 0
    for _ in range(10):
        keep_waiting(rig, flood, many, at_least=40, max_tokens=60)
        rig.step()
        most = max(most, rig.scheduler.stats(rig.now).running)
    assert most == 16 - 4 - 1, "four, and one more, are left, though nobody has them now"
    few = [rig.submit([5, 6], max_tokens=8, tenant=modest)[0] for _ in range(4)]
    keep_waiting(rig, flood, many, at_least=40)
    rig.step()
    rig.step()
    assert all(rig.tokens[key] for key in few), "none of them waits for the end of another's"
    assert rig.scheduler.stats(rig.now).preemptions == 0


def test_what_is_left_to_a_tenant_that_does_not_come_again_is_everybodys() -> None:
    rig = Rig(max_running=16, check=False)
    flood, modest = Tenant(id="flood"), Tenant(id="modest")
    many: list[Key] = []
    for _ in range(4):
        rig.submit([1, 2], max_tokens=8, tenant=modest)
    rig.run()
    rig.now += RECENT_S + 0.5
    keep_waiting(rig, flood, many, at_least=40, max_tokens=60)
    for _ in range(5):
        rig.step()
    assert rig.scheduler.stats(rig.now).running == 16


def test_who_has_had_least_may_have_all_that_a_tenants_share_allows() -> None:
    rig = Rig(max_running=16, check=False)
    rig.submit([1] * 30, tenant=ONE, max_tokens=4)
    rig.submit([2] * 3, tenant=THREE, max_tokens=4)
    rig.step()
    accounts = rig.scheduler._accounts
    one, three = (next(a for a in accounts.active if a.tenant_id == name) for name in ("one", "three"))
    accounts.look()
    assert accounts.room_beside(three, 16) == 16
    assert accounts.room_beside(one, 16) == 16 - 1 - three.peak
    three.peak = 15
    accounts.look()
    assert accounts.room_beside(one, 16) == 4, "a quarter is its share"


def steps_beside_unfinished_prompts(modest: Tenant) -> int:
    """Until a prompt of 30 tokens is through, which comes when another tenant has had much more and has unfinished ones."""
    rig = Rig(step_tokens=24, max_running=8, tenant_share=1.0)
    rig.submit([1, 2], tenant=modest, max_tokens=100)  # so that it is here, and does not begin level with the other
    for number in range(6):
        rig.submit([5 + number] * 60, tenant=Tenant(id="greedy"), max_tokens=20)
    for _ in range(4):
        rig.step()
    (key,) = rig.submit([40] * 30, tenant=modest)
    steps = 0
    while not rig.tokens[key]:
        rig.step()
        steps += 1
    rig.check()
    return steps


def test_a_prompt_of_who_has_had_less_goes_before_unfinished_ones_of_who_has_had_more() -> None:
    assert steps_beside_unfinished_prompts(Tenant(id="modest")) == 2, "30 tokens, where decodes leave some 20 a step"


def test_but_not_before_those_of_a_higher_class() -> None:
    assert steps_beside_unfinished_prompts(Tenant(id="modest", top_class=1)) > 2


def test_a_long_prompt_of_who_has_had_more_gets_on_beside_a_stream_of_others() -> None:
    rig = Rig(step_tokens=24, max_running=8, num_blocks=200, tenant_share=1.0, check=False)
    (long,) = rig.submit([5] * 240, tenant=Tenant(id="greedy"), max_tokens=1)
    few: list[Key] = []
    steps = 0
    while not rig.tokens[long]:
        keep_waiting(rig, Tenant(id="modest"), few, at_least=6)
        rig.step()
        steps += 1
        assert steps < 200, "each has its turn"
    rig.check()
