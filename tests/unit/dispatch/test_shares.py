"""The places that are held back: for whom, and when none are."""

import pytest

from router.dispatch.shares import Shares
from router.fleet.reserve import held_back
from shared.types import Tenant

A, B, HEAVY = Tenant(id="a"), Tenant(id="b"), Tenant(id="h", weight=3.0)


def shares(*there: Tenant) -> Shares:
    counted = Shares()
    for tenant in there:
        counted.sent(tenant)
    return counted


def test_of_whoever_is_there_alone_nothing_is_held_back() -> None:
    assert not shares().has_its_share(A)
    assert not shares(A, A).has_its_share(A)
    assert not shares(A, A).has_its_share(B)


def test_a_share_is_by_weight() -> None:
    assert not shares(A, A, HEAVY, HEAVY).has_its_share(HEAVY)
    assert shares(A, A, HEAVY, HEAVY).has_its_share(A)
    assert shares(A, HEAVY, HEAVY, HEAVY).has_its_share(HEAVY)


def test_what_has_ended_is_not_there() -> None:
    counted = shares(A, A, A, B)
    assert counted.has_its_share(A)
    assert not counted.has_its_share(B)
    for tenant in (A, A, A):
        counted.ended(tenant)
    assert not counted.has_its_share(A)
    assert not counted.has_its_share(B)


@pytest.mark.parametrize(
    ("places", "waiting", "held"),
    [(2, 100, True), (1, 2, True), (3, 100, False), (2, 1, False), (0, 100, True), (1, 0, False)],
)
def test_an_eighth_of_what_runs_is_held_back_where_as_many_wait(places: int, waiting: int, held: bool) -> None:
    assert held_back(places=places, waiting=waiting, max_running=16) is held


def test_a_worker_that_lets_few_wait_holds_nothing_back() -> None:
    """With 64 to run, 8 would be held back, and no more than 4 ever wait."""
    assert not any(held_back(places=4 - waiting, waiting=waiting, max_running=64) for waiting in range(5))
