"""The steps before READY: what they measure, when they end, and that they leave nothing behind that a request could see."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clock import FakeClock
from tests.fakes.executor import FakeExecutor
from tests.unit.scheduler.rig import VOCAB, Rig
from worker.plan import Pending, StepPlan
from worker.scheduler.fit import fit
from worker.scheduler.steptime import StepShape, StepTimes, shape_of
from worker.warmup import SECONDS, Limits, Point, WarmUp, points

LIMITS = Limits(step_tokens=512, slots=64, blocks=512, max_model_len=2048)
FAST = StepTimes((0.008, 4e-4, 3e-4, 2e-4, 1.5e-4, 1.5e-4, 5e-5, 1e-6, 1e-7), measured=True)
Cost = Callable[[StepPlan], float]


class Timed:
    """Runs plans on an executor without a model, and moves the clock by what each costs. `plans` are all that it was given."""

    depth = 0

    def __init__(self, executor: FakeExecutor, clock: FakeClock, cost: Cost) -> None:
        self.plans: list[StepPlan] = []
        self._executor, self._clock, self._cost = executor, clock, cost

    def execute(self, plan: StepPlan) -> Pending:
        self.plans.append(plan)
        self._clock.advance(self._cost(plan) if plan.chunks else 0.0)
        return self._executor.execute(plan)


def warm(limits: Limits = LIMITS, cost: Cost = lambda plan: FAST.predict(shape_of(plan))) -> tuple[WarmUp, Timed]:
    clock = FakeClock()
    executor = FakeExecutor(num_blocks=limits.blocks, slots=limits.slots, vocab_size=VOCAB)
    timed = Timed(executor, clock, cost)
    return WarmUp(timed, limits, clock), timed


def test_the_first_step_is_one_whole_prefill() -> None:
    warm_up, timed = warm()
    measured = warm_up.full_step()
    setup, work = timed.plans
    assert not setup.chunks
    assert setup.tables[0].blocks == tuple(range(32))
    assert [(chunk.slot, chunk.start, chunk.length) for chunk in work.chunks] == [(0, 0, 512)]
    assert [(row.chunk, row.slot, row.position) for row in work.samples] == [(0, 0, 512)]
    assert measured.shape == shape_of(work)
    assert measured.seconds == pytest.approx(FAST.predict(measured.shape))


def test_a_sweep_tells_few_decodes_from_many_and_short_contexts_and_chunks_from_long() -> None:
    warm_up, _ = warm()
    shapes = {each.shape for each in warm_up.sweep(warm_up.full_step())}
    decodes = [shape for shape in shapes if not shape.pairs]
    assert {1, 8, 64} <= {shape.rows for shape in decodes}
    assert len({shape.context for shape in decodes if shape.rows == 8}) > 1
    chunks = [shape for shape in shapes if shape.pairs and shape.samples == 1]
    assert {16, 128, 512} <= {shape.rows for shape in chunks}
    assert any(shape.samples > 1 and shape.pairs for shape in shapes), "decodes beside a chunk"


def test_what_a_sweep_measures_makes_a_model_that_foretells_other_steps() -> None:
    warm_up, _ = warm()
    times = fit(warm_up.sweep(warm_up.full_step()))
    for shape in [
        StepShape().plus(200, 100, 1),
        StepShape(rows=24, samples=24, context=24 * 200),
        StepShape(rows=16, samples=16, context=3000).plus(100, 200),
    ]:
        assert times.predict(shape) == pytest.approx(FAST.predict(shape), rel=0.1)


@pytest.mark.parametrize("factor", [0.1, 1.0, 3.0, 30.0])
def test_a_sweep_ends_in_its_time_however_slow_steps_are(factor: float) -> None:
    """The first time a point runs its time is a guess by its positions, which may be wrong by what one step takes at least."""
    warm_up, timed = warm(cost=lambda plan: factor * FAST.predict(shape_of(plan)))
    first = warm_up.full_step()
    began = timed._clock()
    found = warm_up.sweep(first)
    slowest = factor * FAST.predict(StepShape(rows=64, samples=64, context=4000))
    assert timed._clock() - began <= SECONDS + slowest
    assert found


def test_where_there_is_no_time_for_long_steps_the_first_one_counts() -> None:
    warm_up, _ = warm(cost=lambda plan: 30 * FAST.predict(shape_of(plan)))
    first = warm_up.full_step()
    assert warm_up.sweep(first)[0] == first


def test_points_are_measured_again_while_there_is_time() -> None:
    warm_up, _ = warm()
    found = warm_up.sweep(warm_up.full_step())
    assert len(found) > len({each.shape for each in found})


@given(
    st.builds(
        Limits,
        step_tokens=st.integers(1, 600),
        slots=st.integers(1, 80),
        blocks=st.integers(1, 300),
        max_model_len=st.integers(2, 3000),
    )
)
@settings(max_examples=30, deadline=None)
def test_a_sweep_stays_within_what_the_worker_has(limits: Limits) -> None:
    """The executor itself refuses slots, blocks and KV that are not there."""
    warm_up, timed = warm(limits, cost=lambda plan: 0.05)
    warm_up.sweep(warm_up.full_step())
    for plan in timed.plans:
        assert sum(chunk.length for chunk in plan.chunks) <= limits.step_tokens
        assert all(chunk.start + chunk.length < limits.max_model_len for chunk in plan.chunks)
        blocks = [block for table in plan.tables for block in table.blocks]
        assert len(set(blocks)) == len(blocks), "no block is two sequences'"


def test_every_point_is_one_that_fits() -> None:
    assert Point(length=512) in points(LIMITS)
    assert not [point for point in points(LIMITS) if not point.fits(LIMITS)]
    assert points(Limits(step_tokens=1, slots=1, blocks=1, max_model_len=2)) == [Point(length=1)]


def test_a_sweep_leaves_nothing_behind_that_a_request_could_see() -> None:
    """The executor that served the sweep serves a scheduler that never heard of it: all its blocks are free, nothing is cached, and the
    tokens that come out are those of a run alone, from the very slots and blocks that the sweep wrote."""
    rig = Rig(num_blocks=64)
    limits = Limits(step_tokens=64, slots=4, blocks=64, max_model_len=256)
    warm_up = WarmUp(Timed(rig.executor, FakeClock(), lambda plan: 0.01), limits)
    assert len(warm_up.sweep(warm_up.full_step(), seconds=0.2)) > 5
    stats = rig.scheduler.stats(0.0)
    assert (stats.free_blocks, stats.cached_blocks, rig.scheduler.published()) == (64, 0, ())
    keys = [rig.submit([0] * length, max_tokens=9)[0] for length in (60, 17, 3, 100)]
    rig.run()
    rig.assert_as_alone(keys)
    rig.assert_whole()
