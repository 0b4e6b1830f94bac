"""The runner for devices on the Triton backend, in the interpreter: staged, sent late, recorded, and the same as step by step."""

from dataclasses import replace

import pytest

from shared.types import Sampling, TokenLogprobs
from tests.fakes.checkpoint import tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.driver import Driver
from worker.execution.build import Device, Runner, RunnerConfig, build

SAMPLING = Sampling(temperature=0.7, seed=5, max_tokens=5, ignore_eos=True, logprobs=1)
CONFIG = RunnerConfig(
    dtype="float32", max_running=4, step_tokens=64, max_model_len=64, kv_bytes=1 << 20, threads=1, backend="triton"
)
MODEL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}


def outputs(runner: Runner) -> list[tuple[list[int], list[TokenLogprobs]]]:
    drive = Driver(runner, list(range(runner.num_blocks)))
    sequences = [drive.add(slot, list(range(3, 5 + slot)), SAMPLING) for slot in range(3)]
    drive.run(sequences)
    return [(sequence.output, [one for one in sequence.logprobs if one is not None]) for sequence in sequences]


@pytest.mark.parametrize("deterministic", [True, False], ids=["fixed", "free"])
def test_recorded_steps_of_the_triton_backend_equal_those_that_are_prepared_one_by_one(deterministic) -> None:
    config = replace(CONFIG, deterministic=deterministic)
    checkpoint = tiny_llama(**MODEL, num_key_value_heads=1, head_dim=16, vocab_size=67)[1]
    recordings = Recordings()
    device = build(checkpoint, config, device=Device(queue=LaggingQueue(), graphs=recordings))
    got, want = outputs(device), outputs(build(checkpoint, config))
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want]
    if deterministic:
        assert got == want
    for (_, mine), (_, theirs) in zip(
        got, want, strict=True
    ):  # the library sums by the number of rows, which a recorded step fills up
        assert [one.sampled for one in mine] == pytest.approx([one.sampled for one in theirs], abs=1e-5)
    assert len(recordings.replayed) == 3, "of four decode steps the first runs as it is"
