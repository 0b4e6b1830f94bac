"""The part of an imbalance that is the trace's, against figures worked out by hand."""

from dataclasses import replace

import pytest

from octavo.bench.placement import oracle
from octavo.bench.placement.oracle import Job
from octavo.bench.placement.router import Outcome
from octavo.bench.placement.simulation import Run, Setup, simulate
from octavo.bench.placement.trace import GRAIN, Arrival
from octavo.bench.placement.worker import WorkerSpec
from router.placement import POLICIES
from worker.scheduler.steptime import ASSUMED

SETUP = Setup(workers=2, spec=WorkerSpec(parameters=ASSUMED, blocks=400))
HOUR = [(0.0, 3600.0)]


def test_what_is_left_of_a_prompt_is_a_triangle_of_which_a_window_sees_a_part() -> None:
    assert oracle.area(10.0, 4.0, 0.0, 60.0) == pytest.approx(8.0)
    assert oracle.area(10.0, 4.0, 12.0, 60.0) == pytest.approx(2.0)
    assert oracle.area(10.0, 4.0, 0.0, 11.0) == pytest.approx(3.5)
    assert oracle.area(10.0, 4.0, 20.0, 60.0) == 0.0


def test_a_prompt_that_waits_is_outstanding_whole_until_it_begins() -> None:
    given = [Job(0.0, 4.0), Job(1.0, 2.0)]
    assert oracle.held(given, [0, 1], 2, HOUR) == [[pytest.approx(8.0), pytest.approx(2.0)]]
    assert oracle.held(given, [0, 0], 2, HOUR) == [[pytest.approx(8.0 + 3 * 2.0 + 2.0), 0.0]]
    parts = oracle.held(given, [0, 0], 2, [(0.0, 3.0), (3.0, 60.0)])
    assert parts[0][0] + parts[1][0] == pytest.approx(16.0)


def test_least_held_looks_at_what_is_left_and_not_at_what_was_given() -> None:
    given = [Job(0.0, 5.0), Job(0.0, 1.0), Job(0.5, 1.0), Job(6.0, 1.0), Job(6.0, 1.0)]
    assert oracle.least_held(given, 2) == [0, 1, 1, 0, 1]


def test_longest_first_knows_a_minute_before_it_begins_and_begins_again_with_the_next() -> None:
    given = [Job(0.0, 1.0), Job(1.0, 1.0), Job(2.0, 5.0), Job(61.0, 3.0)]
    assert oracle.longest_first(given, 2) == [1, 1, 0, 0]


def test_cached_tokens_are_no_work() -> None:
    def outcome(at: float, cached: int) -> Outcome:
        return Outcome(at, "w000", 0.0, 0.0, 1_000, cached, 0, 1)

    warm, cold = oracle.jobs(Run(outcomes=[outcome(2.0, 0), outcome(1.0, 900)]), SETUP)
    assert (warm.at, cold.at) == (1.0, 2.0)
    assert 0 < warm.seconds < 0.3 * cold.seconds


def test_one_long_prompt_is_all_of_the_imbalance_where_nothing_else_waits() -> None:
    arrivals = [Arrival(at=0.0, ids=tuple(range(300)), prompt_tokens=300 * GRAIN, output_tokens=1)]
    arrivals += [Arrival(at=50.0, ids=(7_000,), prompt_tokens=GRAIN, output_tokens=1)]
    setup = replace(SETUP, spec=replace(SETUP.spec, blocks=2_000))
    found = oracle.told(simulate(arrivals, POLICIES["cost"], setup), setup)
    assert set(found) == {"run", "single_prompt", *oracle.ORACLES}
    for ratio in found.values():
        assert ratio["p95"] == pytest.approx(2.0, rel=0.1)
