"""Silence, stale reports, and steps that do not come."""

import pytest

from router.fleet.liveness import Liveness
from router.fleet.settings import LinkSettings
from tests.fakes.scripted_worker import load_report


def liveness() -> Liveness:
    return Liveness(LinkSettings(), 0.0)


@pytest.mark.parametrize(("silence", "suspect", "dead"), [(1.9, False, False), (2.0, True, False), (5.0, True, True)])
def test_silence_makes_suspect_then_dead(silence, suspect, dead):
    alive = liveness()
    alive.heard(10.0)
    assert (alive.suspect(10.0 + silence), alive.dead(10.0 + silence)) == (suspect, dead)


def test_time_in_which_the_router_stood_still_is_no_silence():
    alive = liveness()
    alive.heard(10.0)
    alive.look(10.0)
    alive.look(30.0)
    assert not alive.suspect(30.0)
    for quarter in range(1, 21):
        alive.look(30.0 + quarter / 4)
    assert alive.dead(35.0)


def test_only_a_fresh_report_grants_credit():
    alive = liveness()
    assert alive.credits(0.0) == 0
    alive.loaded(load_report(credits=7), 1.0)
    assert alive.credits(2.0) == 7
    alive.heard(2.5)
    assert alive.credits(2.5) == 0


@pytest.mark.parametrize(
    ("report", "hung"),
    [
        ({"has_work": False, "last_step_age_ms": 60_000}, False),
        ({"has_work": True, "last_step_age_ms": 5_000}, False),
        ({"has_work": True, "last_step_age_ms": 5_001}, True),
        ({"has_work": True, "last_step_age_ms": 19_000, "predicted_step_ms": 1_000.0}, False),
        ({"has_work": True, "last_step_age_ms": 20_001, "predicted_step_ms": 1_000.0}, True),
    ],
)
def test_hung_is_work_without_a_step_for_longer_than_5_s_and_20_predicted_steps(report, hung):
    alive = liveness()
    alive.loaded(load_report(**report), 0.0)
    assert alive.hung is hung
