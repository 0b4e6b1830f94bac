"""What the scheduler says of itself."""

import pytest

from tests.unit.scheduler.rig import Rig
from worker.scheduler.estimates import Average, Estimates
from worker.scheduler.steptime import StepShape, StepTimes, shape_of


def test_an_idle_scheduler_says_so() -> None:
    rig = Rig(num_blocks=10)
    stats = rig.scheduler.stats(0.0)
    assert (stats.running, stats.waiting, stats.free_blocks, stats.total_blocks) == (0, 0, 10, 10)
    assert not stats.has_work
    assert not rig.scheduler.has_work


def test_running_waiting_and_context_are_counted_in_sequences_and_tokens() -> None:
    rig = Rig(max_running=2)
    rig.submit([1] * 20, n=2, max_tokens=9)
    rig.submit([2] * 33)
    assert rig.scheduler.stats(0.0).waiting == 3
    assert rig.scheduler.stats(0.0).waiting_uncached_tokens == 53
    rig.step()
    stats = rig.scheduler.stats(rig.now)
    assert (stats.running, stats.waiting, stats.waiting_uncached_tokens) == (2, 1, 33)
    assert stats.context_tokens == 42
    assert stats.step_seq == 0


def test_what_waits_is_counted_without_what_is_cached() -> None:
    rig = Rig(max_running=1)
    rig.submit([1] * 40)
    rig.run()
    rig.submit([2] * 40)
    rig.step()
    rig.submit([1] * 40)
    assert rig.scheduler.stats(rig.now).waiting_uncached_tokens == 8


def test_an_idle_hour_does_not_count_as_a_step_that_hangs() -> None:
    rig = Rig()
    rig.submit([1, 2])
    rig.run()
    rig.now += 3600
    rig.submit([1, 2])
    assert rig.scheduler.stats(rig.now).last_step_at == rig.now


def test_step_time_and_prefill_rate_follow_what_steps_took() -> None:
    rig = Rig(step_tokens=200)
    for began in (1.0, 2.0):
        rig.submit([1] * 200, max_tokens=1)
        plan = rig.scheduler.schedule(began)
        assert plan is not None
        rig.take(rig.scheduler.apply(plan, rig.executor.execute(plan).result(), began + 0.1))
        rig.scheduler.flush_cache()
        rig.take(rig.scheduler.take_output())
    stats = rig.scheduler.stats(2.1)
    assert rig.scheduler.predicted_step_s == pytest.approx(0.1)
    assert stats.prefill_tokens_per_s == pytest.approx(2000)


def test_the_prediction_is_the_plans_own_and_stands_while_it_runs() -> None:
    times = StepTimes(measured=True)
    rig = Rig(step_tokens=200, times=times)
    assert rig.scheduler.predicted_step_s == times.predict(StepShape().plus(0, 200, 1)), "of a full step, before any"
    rig.submit([1] * 100)
    plan = rig.scheduler.schedule(1.0)
    assert plan is not None
    assert (
        rig.scheduler.predicted_step_s == times.predict(shape_of(plan)) == times.predict(StepShape(100, 1, 100, 4950))
    )


def test_the_longest_of_the_steps_in_flight_is_predicted() -> None:
    times = StepTimes(measured=True)
    rig = Rig(depth=1, step_tokens=200, times=times)
    rig.submit([1] * 100)
    first, second = rig.scheduler.schedule(1.0), rig.scheduler.schedule(1.0)
    assert first is not None
    assert second is not None
    assert shape_of(second).rows == 1
    assert rig.scheduler.predicted_step_s == times.predict(shape_of(first))


def test_what_sequences_and_their_context_cost_is_told() -> None:
    times = StepTimes((0.01, *[1e-4] * 5, 2e-4, 3e-6, 1e-9), measured=True)
    stats = Rig(times=times).scheduler.stats(0.0)
    assert stats.sequence_s == pytest.approx(3e-4)
    assert stats.context_token_s == pytest.approx(3e-6)


def test_overlapping_steps_are_not_counted_twice() -> None:
    times, decode = StepTimes(), StepShape(rows=1, samples=1, context=1)
    estimates = Estimates(times, step_tokens=8, output_tokens=1.0)
    estimates.step(decode, planned_at=0.0, retired_at=2.0)
    estimates.step(decode, planned_at=1.0, retired_at=4.0)
    assert times.predict(decode) == pytest.approx(2.0)


def test_one_outlier_moves_an_average_little() -> None:
    average = Average(1.0)
    average.add(10.0)
    average.add(10_000.0)
    average.add(0.0)
    assert average.value == pytest.approx(13.0)
