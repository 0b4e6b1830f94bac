"""Fair queueing: bounds, shares, and turns that are not lost."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.fairqueue import FairQueue, QueueFull
from router.dispatch.rate import Rate, retry_after
from shared.types import Tenant
from tests.fakes.clock import FakeClock


@dataclass(eq=False)
class Item:
    tenant: Tenant
    cost: float = 100.0


def tenant(name: str, weight: float = 1.0, class_: int = 0) -> Tenant:
    return Tenant(id=name, weight=weight, top_class=class_)


def queue(limit: int = 1_000, tenant_limit: int = 1_000, clock: FakeClock | None = None) -> FairQueue[Item]:
    clock = clock or FakeClock()
    return FairQueue(limit=limit, tenant_limit=tenant_limit, clock=clock)


def serve(fair: FairQueue[Item], count: int) -> list[Item]:
    """As many as `count` credits allow."""
    served: list[Item] = []

    def place(item: Item) -> bool:
        if len(served) == count:
            return False
        served.append(item)
        return True

    fair.serve(place)
    return served


def fill(fair: FairQueue[Item], who: Tenant, count: int, cost: float = 100.0) -> None:
    for _ in range(count):
        fair.add(who, cost, Item(who, cost))


def test_a_tenant_with_a_long_backlog_does_not_delay_another():
    fair = queue()
    fill(fair, tenant("greedy"), 50)
    fill(fair, tenant("modest"), 2)
    assert [item.tenant.id for item in serve(fair, 4)].count("modest") == 2


@given(st.integers(1, 5), st.integers(1, 7))
def test_shares_follow_the_weights_however_few_credits_come_at_a_time(weight, credit):
    fair = queue()
    fill(fair, tenant("heavy", weight), 300)
    fill(fair, tenant("light"), 300)
    served: list[Item] = []
    while len(served) < 42 * (weight + 1) / 2:
        served += serve(fair, credit)
    heavy = sum(item.tenant.id == "heavy" for item in served)
    assert abs(heavy - len(served) * weight / (weight + 1)) <= weight + credit


def test_costs_count_not_requests():
    fair = queue()
    fill(fair, tenant("long"), 50, cost=400.0)
    fill(fair, tenant("short"), 50, cost=100.0)
    served = [item.tenant.id for item in serve(fair, 20)]
    assert served.count("short") == 4 * served.count("long")


def test_each_tenant_and_all_together_are_bounded():
    fair = queue(limit=3, tenant_limit=2)
    fill(fair, tenant("a"), 2)
    with pytest.raises(QueueFull):
        fill(fair, tenant("a"), 1)
    fill(fair, tenant("b"), 1)
    assert len(fair) == 3


def test_a_full_queue_bounces_the_newest_of_whoever_has_most_and_not_who_comes():
    fair = queue(limit=4)
    fill(fair, tenant("flood"), 4)
    flood = list(fair)
    fair.check_room(tenant("modest"))
    mine = Item(tenant("modest"))
    assert fair.add(mine.tenant, 100.0, mine) is flood[-1]
    assert list(fair) == [*flood[:-1], mine]
    with pytest.raises(QueueFull):
        fair.check_room(tenant("flood"))
    assert fair.add(mine.tenant, 100.0, Item(mine.tenant)) is flood[-2]
    with pytest.raises(QueueFull):  # two and two
        fair.check_room(tenant("modest"))


def test_what_is_bounced_is_of_the_lowest_class_and_backlogs_count_by_weight():
    fair = queue(limit=4)
    fill(fair, tenant("heavy", weight=4.0), 2)
    fill(fair, tenant("flood", class_=3), 1)
    fill(fair, tenant("flood", class_=1), 1)
    bounced = fair.add(tenant("new"), 100.0, Item(tenant("new")))
    assert bounced is not None
    assert (bounced.tenant.id, bounced.tenant.top_class) == ("flood", 3)


def test_a_higher_class_goes_first_and_tenants_of_one_class_take_turns():
    fair = queue()
    fill(fair, tenant("low", class_=2), 3)
    fill(fair, tenant("a", class_=1), 2)
    fill(fair, tenant("low", class_=1), 2)
    served = [(item.tenant.id, item.tenant.top_class) for item in serve(fair, 9)]
    assert sorted(served[:2]) == [("a", 1), ("low", 1)]
    assert sorted(served[2:4]) == [("a", 1), ("low", 1)]
    assert served[4:] == [("low", 2)] * 3


def test_who_waits_rises_class_by_class_and_does_not_take_those_behind_along():
    clock = FakeClock()
    fair = queue(clock=clock)
    fill(fair, tenant("old", class_=2), 1)
    clock.advance(19)
    fill(fair, tenant("old", class_=2), 1)
    fill(fair, tenant("new", class_=1), 1)
    clock.advance(1)
    served = [(item.tenant.id, item.tenant.top_class) for item in serve(fair, 3)]
    assert served == [("old", 2), ("new", 1), ("old", 2)]


def test_a_newcomer_waits_for_one_request_of_each_other_at_most():
    fair = queue()
    for name in ("a", "b"):
        fill(fair, tenant(name), 100, cost=7.0)
    for _ in range(31):
        serve(fair, 1)
    fill(fair, tenant("new"), 3, cost=900.0)
    served = [serve(fair, 1)[0].tenant.id for _ in range(3)]
    assert "new" in served


def test_who_was_served_and_comes_again_gains_nothing_by_it():
    fair = queue()
    fill(fair, tenant("steady"), 100)
    served: list[str] = []
    for _ in range(40):  # the other always has one, and never two
        if not any(item.tenant.id == "comes" for item in fair):
            fill(fair, tenant("comes"), 1)
        served.append(serve(fair, 1)[0].tenant.id)
    assert abs(served.count("comes") - 20) <= 1


@given(st.data())
def test_nothing_is_lost_or_served_twice_in_any_order_of_calls(data):
    clock = FakeClock()
    fair = queue(limit=12, tenant_limit=6, clock=clock)
    inside: list[Item] = []
    for _ in range(data.draw(st.integers(1, 40))):
        who = tenant(
            data.draw(st.sampled_from("abc")), data.draw(st.sampled_from((1.0, 3.0))), data.draw(st.integers(0, 2))
        )
        match data.draw(st.sampled_from(("add", "add", "add", "serve", "remove", "wait"))):
            case "add":
                item = Item(who, data.draw(st.sampled_from((1.0, 100.0, 900.0))))
                try:
                    bounced = fair.add(who, item.cost, item)
                except QueueFull:
                    continue
                inside.append(item)
                if bounced is not None:
                    inside.remove(bounced)
            case "serve":
                for item in serve(fair, data.draw(st.integers(0, 5))):
                    inside.remove(item)
            case "remove" if inside:
                item = data.draw(st.sampled_from(inside))
                assert fair.remove(item.tenant, item)
                inside.remove(item)
            case "wait":
                clock.advance(data.draw(st.sampled_from((1.0, 10.0, 25.0))))
        assert len(fair) == len(inside)
        assert set(fair) == set(inside)
    assert len(serve(fair, 100)) == len(inside)


def test_what_is_put_back_comes_first_and_what_is_removed_never():
    fair, who = queue(), tenant("a")
    first, second, third = (Item(who) for _ in range(3))
    fair.add(who, 1, second)
    fair.add(who, 1, third)
    fair.put_back(who, 1, first)
    assert fair.remove(who, second)
    assert not fair.remove(who, second)
    assert serve(fair, 9) == [first, third]
    assert len(fair) == 0
    assert list(fair) == []


def test_a_head_that_cannot_be_placed_lets_other_tenants_pass():
    fair, stuck, free = queue(), tenant("stuck"), tenant("free")
    fill(fair, stuck, 1)
    fill(fair, free, 3)
    served: list[str] = []

    def place(item: Item) -> bool:
        if item.tenant is free:
            served.append(item.tenant.id)
        return item.tenant is free

    fair.serve(place)
    assert served == ["free"] * 3
    assert [item.tenant.id for item in serve(fair, 1)] == ["stuck"]


def test_retry_after_is_the_time_that_the_queue_will_take():
    clock = FakeClock()
    rate = Rate(clock)
    for _ in range(200):
        clock.advance(0.25)
        rate.note()
    assert rate.per_second() == pytest.approx(4.0, rel=0.1)
    assert retry_after(40, rate.per_second()) == pytest.approx(10, abs=1)
    clock.advance(3_600)
    assert rate.per_second() < 1e-6
    assert retry_after(40, 0.0) == 1.0
    assert retry_after(10**6, 1.0) == 60.0
