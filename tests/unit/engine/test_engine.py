"""A step is planned, started and retired in order, and its failure is its own."""

import pytest

from shared.types import AbortReason, FinishReason
from tests.fakes.clock import FakeClock
from tests.fakes.engine import Gate, token_request
from tests.fakes.executor import FakeExecutor, alone
from worker.engine import Engine
from worker.engine.engine import STEP_FAILED
from worker.events import StepOutput
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler

VOCAB, LONGEST = 266, 256


def engine(depth: int = 0, clock: FakeClock | None = None) -> tuple[Engine, Gate]:
    config = SchedulerConfig(
        max_running=4,
        step_tokens=32,
        max_model_len=LONGEST,
        vocab_size=VOCAB,
        model_revision="r",
        eos_token_ids=(2,),
        max_waiting=8,
        max_waiting_per_tenant=8,
        depth=depth,
    )
    gate = Gate(FakeExecutor(num_blocks=32, slots=4, vocab_size=VOCAB, eos=(2,), depth=depth))
    clock = clock or FakeClock()
    return Engine(Scheduler(config, 32, started_at=clock()), gate, clock), gate


def run(engine: Engine) -> list[StepOutput]:
    outputs = []
    while engine.has_work:
        outputs.append(engine.step())
        engine.check_integrity()
        assert len(outputs) < 1_000
    return outputs


def tokens(outputs: list[StepOutput], handle: int) -> list[int]:
    return [
        token for output in outputs for _, delta in output.deltas if delta.handle == handle for token in delta.tokens
    ]


@pytest.mark.parametrize("depth", [0, 1])
def test_steps_until_there_is_no_work_give_every_token(depth):
    it, _ = engine(depth)
    requests = [token_request(seq, seq, length=40) for seq in range(1, 7)]
    outputs = [it.submit(1, request) for request in requests]
    outputs += run(it)
    for request in requests:
        expected = alone(request.prompt_tokens, request.sampling, vocab=VOCAB, eos=(2,), limit=LONGEST)
        assert tokens(outputs, request.seq) == expected[:8]
    assert it.stats().free_blocks == it.stats().total_blocks


@pytest.mark.parametrize("depth", [0, 1])
def test_as_many_steps_are_in_flight_as_the_executor_is_deep(depth):
    it, gate = engine(depth)
    it.submit(1, token_request(1, 1, length=100))
    for number in range(1, 4):
        it.step()
        assert len(gate.inner.plans) == number
        assert it.stats().step_seq + 1 == number - depth
        assert (it.last_step is None) == (number <= depth)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("where", ["execute", "result"])
def test_a_step_that_raises_ends_its_own_requests_in_order(depth, where, caplog):
    it, gate = engine(depth)
    if where == "execute":
        gate.fails = lambda plan: ValueError("boom") if plan.step == 1 else None
    else:
        inner = gate.inner

        class Broken:
            depth = inner.depth

            def execute(self, plan):
                pending = inner.execute(plan)
                return Raising(pending) if plan.step == 1 else pending

        class Raising:
            def __init__(self, pending):
                self.pending = pending

            def result(self):
                self.pending.result()
                raise ValueError("boom")

        gate.inner = Broken()
    outputs = [it.submit(1, token_request(1, 1, length=100)), it.submit(1, token_request(2, 2, length=30))]
    outputs += run(it)
    ends = {end.handle: end for output in outputs for _, end in output.finished}
    assert ends[1].reason is FinishReason.ERROR
    assert ends[1].message == STEP_FAILED
    assert "boom" in caplog.text
    assert ends[2].reason is FinishReason.LENGTH or ends[2].reason is FinishReason.ERROR
    assert "step 1 failed" in caplog.text
    late = token_request(3, 3, length=30)
    outputs = [it.submit(1, late), *run(it)]
    assert tokens(outputs, 3) == alone(late.prompt_tokens, late.sampling, vocab=VOCAB, eos=(2,), limit=LONGEST)


def test_the_facts_of_a_step_are_those_of_the_step_that_retired():
    clock = FakeClock()
    it, gate = engine(clock=clock)
    inner = gate.inner

    class Slow:
        depth = 0

        def execute(self, plan):
            clock.advance(0.25)
            return inner.execute(plan)

    gate.inner = Slow()
    it.submit(1, token_request(1, 1, length=40))
    it.step()
    assert (it.last_step.seconds, it.last_step.computed, it.last_step.sampled) == (0.25, 32, 0)
    it.step()
    assert (it.last_step.computed, it.last_step.sampled, it.last_step.failed) == (8, 1, False)


def test_a_dropped_stream_leaves_nothing():
    it, _ = engine()
    it.submit(1, token_request(1, 1, 2, length=100))
    it.step()
    it.drop_stream(1)
    assert not it.has_work
    it.check_integrity()
    assert it.abort(1, [1, 2], AbortReason.CLIENT).finished == ()


def test_without_work_a_step_gives_nothing():
    it, gate = engine()
    assert it.step() == StepOutput()
    assert it.stalled
    assert gate.inner.plans == []
