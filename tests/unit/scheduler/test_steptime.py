"""The model of step time: what it counts, what it learns and what it does not let itself be told."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.plan import Chunk, PromptRows, SampleRow, StepPlan
from worker.scheduler.fit import Measurement, fit
from worker.scheduler.steptime import ASSUMED, CLIP, KNOTS, SHARE, StepShape, StepTimes, features, shape_of

SHAPES = st.builds(
    StepShape,
    rows=st.integers(1, 1000),
    samples=st.integers(0, 128),
    context=st.integers(1, 200_000),
    pairs=st.integers(0, 2_000_000),
)
PARAMETERS = st.tuples(
    st.floats(0.001, 0.05),
    *(st.floats(1e-5, 1e-3) for _ in KNOTS),
    st.floats(1e-6, 2e-4),
    st.floats(1e-7, 5e-6),
    st.floats(1e-9, 2e-7),
)  # seconds: from a small model on a good machine to a large one on a bad machine


def decode(count: int, context: int) -> StepShape:
    return StepShape(rows=count, samples=count, context=count * context)


def swept() -> list[StepShape]:
    """Steps as a sweep has them."""
    shapes = [decode(*each) for each in ((1, 64), (4, 64), (8, 64), (8, 500), (32, 64), (64, 60), (16, 250))]
    shapes += [StepShape().plus(0, length, 1) for length in (16, 64, 128, 256, 512)]
    return [*shapes, StepShape().plus(384, 128, 1), decode(8, 64).plus(0, 64, 1), decode(8, 64).plus(448, 32, 1)]


def served(rng: random.Random) -> StepShape:
    """A step as serving has them: decodes, and often a piece of a prompt."""
    shape = StepShape()
    for _ in range(rng.randint(1, 64)):
        shape = shape.plus(rng.randint(10, 1000), 1, 1)
    return shape.plus(rng.randint(0, 1500), rng.randint(32, 400)) if rng.random() < 0.5 else shape


def noisy(rng: random.Random, seconds: float) -> float:
    """5 % of noise; one in twenty takes two to ten times as long."""
    return seconds * rng.lognormvariate(0, 0.05) * (rng.uniform(2, 10) if rng.random() < 0.05 else 1)


def error(model: StepTimes, truth: StepTimes, shape: StepShape) -> float:
    return abs(model.predict(shape) / truth.predict(shape) - 1)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_a_plan_is_counted_in_positions_samples_and_scores_context_and_pairs() -> None:
    plan = StepPlan(
        step=0,
        chunks=(Chunk(0, 99, 1), Chunk(1, 10, 3), Chunk(2, 0, 2)),
        samples=(SampleRow(0, 0, 100), SampleRow(1, 1, 13)),
        prompts=(PromptRows(1, 11, 2),),
    )
    queries = [(chunk.start + i + 1) for chunk in plan.chunks for i in range(chunk.length)]  # keys that each reads
    lasts = [chunk.start + chunk.length for chunk in plan.chunks]
    assert shape_of(plan) == StepShape(rows=6, samples=4, context=sum(lasts), pairs=sum(queries) - sum(lasts))


def test_a_chunk_in_pieces_reads_as_many_pairs_and_its_beginning_again() -> None:
    whole = StepShape().plus(0, 100)
    first, second = StepShape().plus(0, 60), StepShape().plus(60, 40)
    assert whole.context + whole.pairs == 100 * 101 // 2
    assert first.context + first.pairs + second.context + second.pairs == 100 * 101 // 2


@given(PARAMETERS, SHAPES, st.integers(0, 3))
def test_more_of_anything_never_takes_less_time(parameters: tuple[float, ...], shape: StepShape, which: int) -> None:
    model = StepTimes(parameters, measured=True)
    more = StepShape(*(value + (place == which) for place, value in enumerate(shape)))
    assert model.predict(more) >= model.predict(shape) > 0


def test_positions_cost_by_the_segment_they_are_in() -> None:
    slopes = (5e-4, 4e-4, 3e-4, 2e-4, 1e-4)
    model = StepTimes((0.01, *slopes, 0, 0, 0), measured=True)
    for slope, (knot, end) in zip(slopes, pairwise((*KNOTS, 900)), strict=True):
        assert model.predict(StepShape(rows=end)) - model.predict(StepShape(rows=knot)) == pytest.approx(
            slope * (end - knot)
        )


@pytest.mark.parametrize("seed", range(12))
def test_the_fit_recovers_a_cost_function_within_a_tenth_under_noise_and_outliers(seed: int) -> None:
    """Each parameter is up to ten times what is assumed, or a tenth of it."""
    rng = random.Random(seed)
    truth = StepTimes([each * 10 ** rng.uniform(-1, 1) for each in ASSUMED], measured=True)
    measurements = [Measurement(shape, noisy(rng, truth.predict(shape))) for shape in swept() for _ in range(5)]
    model = fit(measurements)
    assert mean([error(model, truth, shape) for shape in swept()]) < 0.05
    assert max(error(model, truth, shape) for shape in swept()) < 0.1


@given(PARAMETERS)
@settings(max_examples=40, deadline=None)
def test_without_noise_the_fit_foretells_steps_that_it_has_not_seen(parameters: tuple[float, ...]) -> None:
    truth = StepTimes(parameters, measured=True)
    model = fit([Measurement(shape, truth.predict(shape)) for shape in swept()])
    unseen = [decode(12, 120), decode(48, 80), StepShape().plus(100, 200, 1), decode(4, 300).plus(200, 100)]
    assert max(error(model, truth, shape) for shape in unseen) < 0.1


def test_one_measurement_keeps_the_assumed_proportions() -> None:
    shape = StepShape().plus(0, 512, 1)
    model = fit([Measurement(shape, 3.0)])
    assert model.measured
    assert model.predict(shape) == pytest.approx(3.0, rel=0.01)
    assert model.parameters[6] > 0


def test_without_measurements_nothing_is_known_and_the_first_step_scales_all() -> None:
    model, shape = fit([]), decode(4, 100)
    assert not model.measured
    before, other = model.predict(shape), StepShape().plus(0, 100)
    expected = 3.0 * model.predict(other) / before
    model.observe(shape, 3.0)
    assert model.measured
    assert model.predict(shape) == pytest.approx(3.0)
    assert model.predict(other) == pytest.approx(expected)


@given(PARAMETERS, SHAPES, st.floats(1e-6, 1e6))
def test_one_step_moves_its_prediction_by_a_share_and_no_outlier_by_more(
    parameters: tuple[float, ...], shape: StepShape, factor: float
) -> None:
    model = StepTimes(parameters, measured=True)
    before = model.predict(shape)
    model.observe(shape, before * factor)
    clipped = min(max(factor, 1 / CLIP), CLIP)
    assert all(each >= 0 for each in model.parameters)
    assert model.predict(shape) == pytest.approx(before * (1 + SHARE * (clipped - 1)), rel=0.03)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_time_that_is_not_positive_says_nothing(seconds: float) -> None:
    model = StepTimes(measured=True)
    model.observe(decode(1, 1), seconds)
    assert model.parameters == ASSUMED


@pytest.mark.parametrize("factor", [0.4, 0.7, 1.5, 2.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_changes_its_speed_is_followed(factor: float, seed: int) -> None:
    rng = random.Random(seed)
    model = StepTimes(measured=True)
    truth = StepTimes([factor * each for each in model.parameters], measured=True)
    for _ in range(400):
        shape = served(rng)
        model.observe(shape, noisy(rng, truth.predict(shape)))
    assert mean([error(model, truth, served(rng)) for _ in range(100)]) < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_from_nothing_the_steps_of_serving_are_learned(seed: int) -> None:
    """Each parameter is up to three times what is assumed, or a third of it."""
    rng, model = random.Random(seed), StepTimes()
    truth = StepTimes([each * 3 ** rng.uniform(-1, 1) for each in ASSUMED], measured=True)
    for _ in range(600):
        shape = served(rng)
        model.observe(shape, noisy(rng, truth.predict(shape)))
    assert mean([error(model, truth, served(rng)) for _ in range(100)]) < 0.1


def test_as_many_parameters_as_features_are_needed() -> None:
    assert len(features(StepShape())) == len(ASSUMED)
    with pytest.raises(ValueError, match="parameters"):
        StepTimes(ASSUMED[1:])
