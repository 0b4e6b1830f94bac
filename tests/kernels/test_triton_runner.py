"""The runner for devices on the Triton backend, in the interpreter: staged, sent late, recorded, and the same as step by step."""

from dataclasses import replace

import pytest

from shared.types import Sampling
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.driver import Driver
from worker.execution.build import Device, Runner, RunnerConfig, build

SAMPLING = Sampling(temperature=0.7, seed=5, max_tokens=5, ignore_eos=True, logprobs=1)
CONFIG = RunnerConfig(
    dtype="float32", max_running=4, step_tokens=64, max_model_len=64, kv_bytes=1 << 20, threads=1, backend="triton"
)
MODEL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}


def outputs(runner: Runner) -> list[tuple[list[int], list[object]]]:
    drive = Driver(runner, list(range(runner.num_blocks)))
    sequences = [drive.add(slot, list(range(3, 5 + slot)), SAMPLING) for slot in range(3)]
    drive.run(sequences)
    return [(sequence.output, list(sequence.logprobs)) for sequence in sequences]


@pytest.mark.parametrize("deterministic", [True, False], ids=["fixed", "free"])
def test_recorded_steps_of_the_triton_backend_equal_those_that_are_prepared_one_by_one(deterministic) -> None:
    config = replace(CONFIG, deterministic=deterministic)
    checkpoint = tiny_llama(**MODEL, num_key_value_heads=1, head_dim=16, vocab_size=67)[1]
    recordings = Recordings()
    device = build(checkpoint, config, device=Device(queue=LaggingQueue(), graphs=recordings))
    assert outputs(device) == outputs(build(checkpoint, config))
    assert len(recordings.replayed) == 3, "of four decode steps the first runs as it is"
