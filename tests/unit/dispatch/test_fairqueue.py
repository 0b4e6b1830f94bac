"""Deficit round robin: bounds, shares, and turns that are not lost."""

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


def tenant_of(item: Item) -> Tenant:
    return item.tenant


def tenant(name: str, weight: float = 1.0) -> Tenant:
    return Tenant(id=name, weight=weight)


def queue(limit: int = 1_000, tenant_limit: int = 1_000, quantum: float = 100.0) -> FairQueue[Item]:
    return FairQueue(limit=limit, tenant_limit=tenant_limit, quantum=quantum)


def serve(fair: FairQueue[Item], count: int) -> list[Item]:
    """As many as `count` credits allow."""
    served: list[Item] = []

    def place(item: Item) -> bool:
        if len(served) == count:
            return False
        served.append(item)
        return True

    fair.serve(place, tenant_of)
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
    with pytest.raises(QueueFull):
        fair.check_room(tenant("c"))
    assert len(fair) == 3


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

    fair.serve(place, tenant_of)
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
