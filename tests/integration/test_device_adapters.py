"""Adapters on a device that computes behind the host: their decodes are recorded like others, and give what they give step by step."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kernels.lora.weights import LoraWeights
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.lora import random_adapter
from tests.fakes.sampled_runs import Asked, Runs
from tests.integration.test_device_runner import CONFIG, KINDS, assert_alike, prompts
from worker.execution.build import Device, Runner, build

ADAPTED = replace(CONFIG, adapter_slots=3, max_adapter_rank=8)
NAMES = (b"", b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32)


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    return tiny_llama()[1]


@pytest.fixture(scope="module")
def waiting(checkpoint: MemoryCheckpoint) -> Iterator[Runner]:
    made = build(checkpoint, ADAPTED)
    yield made
    made.close()


def held(runner: Runner) -> dict[bytes, LoraWeights]:
    """Of several ranks; one alone has a head and an embedding."""
    assert runner.adapters is not None
    kinds = [("q", "v"), ("gate", "down", "o"), ("k", "up"), ("q", "head", "embed")]
    return {
        name: random_adapter(runner.adapters.shapes, seed, rank=2 + seed, modules=modules)
        for seed, (name, modules) in enumerate(zip(NAMES[1:], kinds, strict=True))
    }


def mixed(runner: Runner, **changes: object) -> list[Asked]:
    """All kinds with all adapters and none; more adapters than slots, so that slots change hands while others run."""
    runs, asked = Runs(runner, max_running=20, adapters=held(runner), **changes), []
    for number, prompt in enumerate(prompts(10)):
        asked.append(runs.ask(prompt, KINDS[number % len(KINDS)], adapter=NAMES[number * 3 % len(NAMES)]))
        if number % 4 == 3:
            runs.step(3)
    asked.append(runs.ask(prompts(2)[1], KINDS[1], n=3, adapter=NAMES[4]))
    runs.finish()
    return asked


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "operator by operator"])
@pytest.mark.parametrize("changes", [{}, {"blocks": 30, "prefix_cache": False}], ids=str)
def test_adapters_give_the_same_bits_with_steps_one_ahead(checkpoint, waiting, graphs, changes) -> None:
    recordings = Recordings() if graphs else None
    runner = build(checkpoint, ADAPTED, device=Device(queue=LaggingQueue(), graphs=recordings))
    assert_alike(mixed(runner, **changes), mixed(waiting, **changes))
    adapted = [key for key in recordings.replayed if key.kind == (1,)] if recordings else []
    assert not graphs or len(adapted) > 10


def test_tokens_depend_on_the_adapter(waiting) -> None:
    runs = Runs(waiting, adapters=held(waiting))
    asked = [runs.ask(prompts(1)[0], KINDS[0], adapter=name) for name in NAMES]
    runs.finish()
    assert len({tuple(one.tokens) for one in asked}) == len(NAMES)
