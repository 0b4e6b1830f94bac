"""The latency guard: what steps that decode may take, how prompts get on beside them, and that nobody is kept out."""

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.scheduler.rig import Key, Rig, config
from worker.plan import StepPlan
from worker.scheduler.guard import AUTO, Guard, Want
from worker.scheduler.steptime import StepShape, StepTimes, shape_of

FLOOR = 32
# Seconds, of a small model on two cores: 8 decodes of 200 tokens take 14 ms, a prompt of 512 tokens alone 100 ms.
SMALL = (0.0105, 1e-4, 1e-4, 1e-4, 1.5e-4, 1.5e-4, 5e-5, 1e-6, 1e-7)
LARGE = (0.3, 2e-3, 2e-3, 4e-3, 4e-3, 4e-3, 1e-3, 3e-5, 1e-6)
STEEP = (0.002, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-5, 1e-6, 3e-7)  # attention is most of it


def decoding(plan: StepPlan) -> StepShape:
    """The plan's decodes alone: chunks of one position that give a token."""
    sampled = {row.chunk for row in plan.samples}
    shape = StepShape()
    for number, chunk in enumerate(plan.chunks):
        if chunk.length == 1 and number in sampled:
            shape = shape.plus(chunk.start, 1, 1)
    return shape


class Machine:
    """A rig whose steps take what `cost` says, on a clock that only steps move. `plans` pair each plan with its predicted time."""

    def __init__(
        self, parameters: tuple[float, ...], cost: Callable[[StepShape], float] | None = None, **config: object
    ):
        self.times = StepTimes(parameters, measured=True)
        self.cost = cost or StepTimes(parameters, measured=True).predict
        fields: dict[str, object] = {
            "times": self.times, "num_blocks": 1024, "max_running": 16, "step_tokens": 512, "max_model_len": 4096,
            "target_itl_s": None, "check": False,
        }  # fmt: skip
        self.rig = Rig(**(fields | config))  # type: ignore[arg-type]
        self.plans: list[tuple[StepPlan, float]] = []

    @property
    def now(self) -> float:
        return self.rig.now

    def step(self) -> StepPlan | None:
        """Plan one, run it, retire the oldest when there are more than the depth allows."""
        plan = self.rig.scheduler.schedule(self.rig.now)
        if plan is not None:
            self.plans.append((plan, self.times.predict(shape_of(plan))))
            self.rig.pending.append((plan, self.rig.executor.execute(plan)))
        self.rig.take(self.rig.scheduler.take_output())
        if len(self.rig.pending) > (self.rig.depth if plan is not None else 0):
            oldest = self.rig.pending[0][0]
            self.rig.now += self.cost(shape_of(oldest))
            self.rig.retire()
        return plan

    def decode(self, count: int, context: int = 20, max_tokens: int = 4000) -> list[Key]:
        """So many streams that decode."""
        keys = [self.rig.submit([number, *[1] * (context - 1)], max_tokens=max_tokens)[0] for number in range(count)]
        while not all(self.rig.tokens[key] for key in keys):
            self.step()
        return keys

    def until_first(self, key: Key, most: int = 2000) -> list[tuple[StepPlan, float]]:
        """The steps until the choice has its first token."""
        began = len(self.plans)
        while not self.rig.tokens[key]:
            assert len(self.plans) - began < most, "it never comes to its first token"
            assert self.step() is not None
        return self.plans[began:]


def prefilled(plan: StepPlan) -> int:
    return shape_of(plan).rows - decoding(plan).rows


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("parameters", [SMALL, LARGE, STEEP])
@pytest.mark.parametrize("target_ms", [None, 2.5])
def test_c22_a_long_prompt_beside_eight_streams_keeps_each_step_under_the_target(
    parameters: tuple[float, ...], depth: int, target_ms: float | None
) -> None:
    """Case C22's kind. `target_ms` here is in times that 8 decodes and FLOOR tokens take, so that the floor does not break it."""
    model = StepTimes(parameters, measured=True)
    eight = StepShape(rows=8, samples=8, context=8 * 300)
    target = None if target_ms is None else target_ms * model.predict(eight.plus(1999, FLOOR, 1))
    machine = Machine(parameters, target_itl_s=target, depth=depth)
    machine.decode(8)
    long = machine.rig.submit([5] * 2000, max_tokens=1)[0]
    steps = machine.until_first(long)
    for plan, predicted in steps:
        alone = machine.times.predict(decoding(plan))
        assert decoding(plan).rows >= 8, "each stream gets its token in each step"
        assert predicted <= (target or max(0.025, AUTO * alone)) or prefilled(plan) <= FLOOR
    if parameters is not STEEP:
        assert all(prefilled(plan) > FLOOR for plan, _ in steps[:-2]), "there is time for more than the floor"
        tight = [
            predicted / (target or max(0.025, AUTO * machine.times.predict(decoding(plan))))
            for plan, predicted in steps[:-2]
        ]
        assert min(tight) > 0.95, "and the time there is is used"


def test_chunks_become_shorter_as_their_context_grows() -> None:
    machine = Machine(SMALL)
    machine.decode(8)
    steps = machine.until_first(machine.rig.submit([5] * 2000, max_tokens=1)[0])
    pieces = [prefilled(plan) for plan, _ in steps[:-1]]
    assert pieces[0] > 1.5 * pieces[-1]
    assert all(later <= earlier + 1 for earlier, later in pairwise(pieces))


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_gets_its_floor_however_low_the_target(depth: int) -> None:
    machine = Machine(LARGE, target_itl_s=1e-6, depth=depth)
    machine.decode(8)
    steps = machine.until_first(machine.rig.submit([5] * 2000, max_tokens=1)[0])
    assert all(prefilled(plan) >= FLOOR for plan, _ in steps[: -1 - depth])
    assert len(steps) <= -(-2000 // FLOOR) + 1


def test_with_nothing_decoding_a_prompt_gets_the_whole_budget() -> None:
    machine = Machine(LARGE, target_itl_s=1e-6)
    steps = machine.until_first(machine.rig.submit([5] * 2000, max_tokens=1)[0])
    assert [shape_of(plan).rows for plan, _ in steps] == [512, 512, 512, 464]


def test_a_prompt_whose_tokens_are_scored_gets_fewer_positions() -> None:
    costly = (*SMALL[:6], 1e-3, *SMALL[7:])  # seconds for a token drawn, or scored
    pieces = []
    for scored in (None, 0):
        machine = Machine(costly, target_itl_s=0.1)
        machine.decode(8)
        key = machine.rig.submit([5] * 1000, max_tokens=1, prompt_logprobs=scored)[0]
        steps = machine.until_first(key)
        assert all(predicted <= 0.1 for _, predicted in steps)
        machine.rig.assert_scored(key)
        pieces.append(prefilled(steps[0][0]))
    assert pieces[1] < pieces[0] / 2


def test_without_a_guard_a_prompt_gets_what_decodes_leave_of_the_budget() -> None:
    machine = Machine(LARGE, target_itl_s=math.inf)
    machine.decode(8)
    (plan, _), *_ = machine.until_first(machine.rig.submit([5] * 2000, max_tokens=1)[0])
    assert shape_of(plan).rows == 512


def test_short_prompts_pass_a_long_one_within_the_target() -> None:
    machine = Machine(SMALL)
    machine.decode(8)
    long = machine.rig.submit([5] * 2000, max_tokens=1)[0]
    machine.step()
    short = machine.rig.submit([6] * 20, max_tokens=1)[0]
    machine.until_first(short, most=2)
    assert not machine.rig.tokens[long]
    machine.until_first(long)


def test_the_oldest_prompt_gets_half_of_what_there_is_room_for_however_many_come() -> None:
    machine = Machine(SMALL, max_running=40)
    machine.decode(8)
    long = machine.rig.submit([5] * 1000, max_tokens=1)[0]
    steps = 0
    while not machine.rig.tokens[long]:
        for number in range(3):
            machine.rig.submit([(steps + 7 * number) % 40] * 30, max_tokens=1)
        machine.step()
        steps += 1
        assert steps < 200, "others keep it waiting"
    alone = Machine(SMALL)
    alone.decode(8)
    assert steps <= 2.5 * len(alone.until_first(alone.rig.submit([5] * 1000, max_tokens=1)[0])) + 2


def test_prompts_that_would_take_all_that_is_left_let_someone_in() -> None:
    rig = Rig(step_tokens=32, max_running=8, num_blocks=64)
    rig.submit([5] * 240)
    rig.step()
    rig.submit([6] * 32)
    rig.step()  # half for the oldest, half for a piece of this one, of which as much is left as the next step has
    rig.submit([7] * 5)
    rig.step()
    assert rig.scheduler.stats(rig.now).waiting == 0


@pytest.mark.parametrize("context", range(20, 120, 10))
def test_nobody_is_let_in_behind_another_whose_first_position_reads_too_much(context: int) -> None:
    """What the first one leaves of the time differs by the decodes' context, and does for a position that reads nothing but itself."""
    machine = Machine(STEEP)
    machine.until_first(machine.rig.submit([1] * 641, max_tokens=1)[0])
    machine.decode(2, context)
    machine.rig.submit([2] * 600, max_tokens=1)
    (deep,) = machine.rig.submit([1] * 641, max_tokens=1)  # of which 640 positions are cached
    machine.step()
    assert machine.plans[-1][1] <= 0.025
    machine.until_first(deep, most=3)


def test_a_machine_that_is_slower_than_foretold_makes_chunks_shorter() -> None:
    slower = StepTimes([3 * each for each in SMALL], measured=True)
    machine = Machine(SMALL, cost=slower.predict, target_itl_s=0.1, max_running=10)
    machine.decode(8, max_tokens=3000)
    first = machine.until_first(machine.rig.submit([5] * 2000, max_tokens=1)[0])
    for number in range(6, 16):
        last = machine.until_first(machine.rig.submit([number] * 2000, max_tokens=1)[0])
    assert max(slower.predict(shape_of(plan)) for plan, _ in last) < 0.11
    assert prefilled(first[0][0]) > 2 * prefilled(last[0][0])


@given(
    parameters=st.sampled_from([SMALL, LARGE, STEEP]),
    depth=st.integers(0, 1),
    target=st.sampled_from([None, 0.001, 0.03, 0.2, 1.0]),
    step_tokens=st.sampled_from([64, 200, 512]),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_comes_steps_keep_the_target_prompts_get_on_and_places_are_filled(
    parameters: tuple[float, ...], depth: int, target: float | None, step_tokens: int, seed: int
) -> None:
    """On a machine with noise and stalls, with mixed prompts that share beginnings, aborts, and KV for a few of them."""
    rng = random.Random(seed)
    truth = StepTimes(parameters, measured=True)

    def cost(shape: StepShape) -> float:
        return truth.predict(shape) * rng.uniform(0.8, 1.3) * (rng.choice([1, 5]) if rng.random() < 0.05 else 1)

    machine = Machine(
        parameters, cost, depth=depth, target_itl_s=target, step_tokens=step_tokens, num_blocks=120, max_running=6,
        max_model_len=700, check=True,
    )  # fmt: skip
    rig, live = machine.rig, []
    for _ in range(60):
        if rng.random() < 0.3:
            stem = [rng.choice([1, 2])] * rng.choice([1, 5, 40, 300, 600])
            scored = rng.choice([None, None, 0])
            live += rig.submit([*stem, rng.randrange(40)], max_tokens=rng.randint(1, 60), prompt_logprobs=scored)
        if live and rng.random() < 0.05:
            rig.abort([live.pop(rng.randrange(len(live)))])
        _step_and_check(machine, target)
    rig.run()
    rig.assert_as_alone([key for key in live if key not in rig.rejected])
    rig.assert_whole()


def _step_and_check(machine: Machine, target: float | None) -> None:
    rig = machine.rig
    admissible = _head_fits(rig)
    before = set(rig.scheduler._residents.running)
    prefills = [seq for seq in before if seq.pending > 1]
    wanted = sum(seq.pending for seq in prefills)
    times = StepTimes(machine.times.parameters, measured=True)
    plan = machine.step()
    if plan is None:
        assert not admissible
        return
    admitted = {start.slot for start in plan.starts}
    assert admitted or not admissible, "a place is free, KV is free, and nobody got it"
    decodes, shape = decoding(plan), shape_of(plan)
    least = min(wanted, FLOOR, machine.rig.config.step_tokens // 2)
    assert shape.rows - decodes.rows >= least or rig.scheduler.stats(rig.now).preemptions, (
        "prompts that wait get their floor"
    )
    if decodes.rows:
        limit = max(0.025, AUTO * times.predict(decodes)) if target is None else target
        first = next((chunk for chunk in plan.chunks if chunk.slot in admitted), None)
        allowed = shape.rows - decodes.rows <= FLOOR or times.predict(shape) <= limit
        assert allowed or (first is not None and first.length == 1), (
            "over the target, and not by the first one's first position"
        )


def _head_fits(rig: Rig) -> bool:
    """Whether the next in the queue has all that admission asks for, and nobody else has a claim."""
    scheduler = rig.scheduler
    heads = [entry for lane in scheduler._queue._lanes.values() for entry in lane][:1]
    if not heads or not scheduler._residents.slots.free or heads[0].leader.unknown:
        return False
    demand = scheduler._planner._admission.demand(heads[0])
    growing = len(scheduler._residents)  # each may take a block for its next position
    return demand.taken + demand.copies + growing + 2 <= scheduler._cache.available


SHAPES = st.builds(
    StepShape, rows=st.integers(0, 80), samples=st.integers(0, 80), context=st.integers(0, 50_000), pairs=st.just(0)
)


@given(
    step=SHAPES, start=st.integers(0, 3000), most=st.integers(0, 600), more=st.integers(0, 50), samples=st.integers(1, 4),
    target=st.floats(1e-4, 1.0), scored=st.booleans(),
)  # fmt: skip
def test_the_longest_chunk_fits_and_the_next_longer_one_does_not(
    step: StepShape, start: int, most: int, more: int, samples: int, target: float, scored: bool
) -> None:
    times = StepTimes(SMALL, measured=True)
    guard = Guard(times, config(target_itl_s=target))
    want = Want(start=start, length=most + more, samples=samples, scored=scored)

    def seconds(length: int) -> float:
        drawn = samples if length == want.length else 0
        return times.predict(step.plus(start, length, drawn + scored * length))

    length = guard.longest(step, want, most=most, target=target)
    assert 0 <= length <= most
    assert not length or seconds(length) <= target
    assert length == most or seconds(length + 1) > target


@pytest.mark.parametrize(("itl", "expected"), [(None, 2.0), (0.5, 0.5), (math.inf, math.inf)])
def test_the_target_is_what_was_asked_for_or_twice_the_decodes(itl: float | None, expected: float) -> None:
    times = StepTimes((1.0, *[0.0] * 8), measured=True)
    guard = Guard(times, config(target_itl_s=itl))
    assert guard.target(StepShape(rows=3, samples=3)) == expected
    assert guard.target(StepShape()) == math.inf
    assert guard.target(StepShape(), several=True) == (0.05 if itl is None else itl), "another tenant may come"


def test_the_target_of_fast_decodes_is_25_ms() -> None:
    guard = Guard(StepTimes((0.001, *[0.0] * 8), measured=True), config(target_itl_s=None))
    assert guard.target(StepShape(rows=1, samples=1)) == 0.025


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_a_target_must_be_positive(target: float) -> None:
    with pytest.raises(ValueError, match="target_itl_s"):
        config(target_itl_s=target)
