"""A step that fails on a device behind the host ends its own sequences alone: what others asked for when they started is still there."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.types import Sampling
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.device import LaggingQueue
from tests.fakes.driver import Driver, Run
from tests.kernels.test_triton_steps import CONFIG, MODEL
from worker.execution.build import Device, Runner, build

GREEDY = Sampling(temperature=0, max_tokens=4, ignore_eos=True)
KINDS = {
    "masks": replace(GREEDY, allowed_token_ids=(8, 9, 40)),
    "penalties": replace(GREEDY, repetition_penalty=10.0, frequency_penalty=2.0),
}
Fails = Callable[[Runner, LaggingQueue, pytest.MonkeyPatch], None]


def in_the_model(runner: Runner, _: LaggingQueue, patch: pytest.MonkeyPatch) -> None:
    """As late as it may be."""
    patch.setattr(runner._model, "forward", lambda *_: 1 / 0)


def at_the_start(_: Runner, queue: LaggingQueue, patch: pytest.MonkeyPatch) -> None:
    """As a GPU's queue tells what it cannot even launch."""
    patch.setattr(queue, "submit", lambda *_: 1 / 0)


def begun(runner: Runner, sampling: Sampling) -> tuple[Driver, Run]:
    """A sequence of whose prompt a part is computed."""
    drive = Driver(runner, list(range(runner.num_blocks)))
    one = drive.add(0, [*range(50, 60), *range(8, 16)], sampling)
    runner.execute(drive.start(one)).result()
    runner.execute(drive.plan([(one, 10)])).result()
    return drive, one


def finished(drive: Driver, one: Run) -> list[int]:
    while len(one.output) < one.sampling.max_tokens:
        plan = drive.plan([(one, one.known - one.computed)])
        drive.take([one], plan, drive.executor.execute(plan).result())
    return one.output


@pytest.mark.parametrize("fails", [in_the_model, at_the_start], ids=lambda fails: fails.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sequence_asked_for_outlives_a_failed_step_of_others(
    kind: str, fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one, which samples by the same tables in the step that fails, started when this one's rows were on their way."""
    checkpoint, sampling, queue = tiny_llama(**MODEL)[1], KINDS[kind], LaggingQueue()
    config = replace(CONFIG, adapter_slots=0)
    want = finished(*begun(build(checkpoint, config, device=Device(queue=LaggingQueue(), graphs=None)), sampling))
    runner = build(checkpoint, config, device=Device(queue=queue, graphs=None))
    drive, one = begun(runner, sampling)
    other = drive.add(1, [5, 6], sampling)
    runner.execute(drive.start(other)).result()
    plan = drive.plan([(other, 2)])
    with monkeypatch.context() as patch:
        fails(runner, queue, patch)
        with pytest.raises(ZeroDivisionError):
            runner.execute(plan).result()
    assert finished(drive, one) == want
    assert kind != "masks" or set(want) <= {8, 9, 40}
