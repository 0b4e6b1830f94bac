"""Whole steps of a device behind the host, in the interpreter: whatever a request asks for, a step is sent in one copy, and the host looks
at nothing but what was sampled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from shared.types import FinishReason, Sampling
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.lora import random_adapter
from tests.fakes.sampled_runs import Asked, Runs
from tests.fakes.watch import Looked, Unseen
from worker.execution.build import Device, Runner, RunnerConfig, build
from worker.plan import Pending, StepPlan

CONFIG = RunnerConfig(
    dtype="float32", max_running=6, step_tokens=64, max_model_len=64, kv_bytes=1 << 20, threads=1, backend="triton",
    adapter_slots=2, max_adapter_rank=4,
)  # fmt: skip
MODEL = {
    "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67,
}  # fmt: skip
PLAIN = Sampling(temperature=0, max_tokens=5, ignore_eos=True)
HOT = replace(PLAIN, temperature=0.9, seed=3)
ONE, OTHER = b"1" * 32, b"2" * 32
Scenario = Callable[[Runs], list[Asked]]
SCENARIOS: dict[str, Scenario] = {
    "greedy and drawn": lambda runs: [runs.ask([5, 6, 7], PLAIN), runs.ask([8], replace(HOT, top_k=9, top_p=0.8))],
    "adapters": lambda runs: [
        *(runs.ask([5, 6, 7], PLAIN, adapter=name) for name in (ONE, OTHER, b"")),
        runs.ask([5, 6, 7, 8], replace(HOT, logprobs=1, prompt_logprobs=1), adapter=OTHER),
    ],
    "masks": lambda runs: [runs.ask([5], replace(HOT, allowed_token_ids=(8, 9, 40))), runs.ask([6, 7], PLAIN)],
    "penalties and bias": lambda runs: [
        runs.ask([5, 6], replace(PLAIN, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2)),
        runs.ask([5, 6], replace(HOT, frequency_penalty=-1.0, logit_bias=((11, 4.0),))),
    ],
    "bad words and ends": lambda runs: [
        runs.ask([5, 6], replace(HOT, bad_words=((9,), (5, 6)), min_tokens=3, ignore_eos=False, stop_token_ids=(33,)))
    ],
    "logprobs": lambda runs: [
        runs.ask([5, 6, 7, 8], replace(HOT, logprobs=4, prompt_logprobs=2)),
        runs.ask([9, 9], replace(PLAIN, logprobs=0)),
    ],
    "choices": lambda runs: [runs.ask(list(range(3, 20)), replace(HOT, temperature=2.0, logprobs=1), n=3)],
    "resumed": lambda runs: [
        runs.ask([5, 6], replace(HOT, max_tokens=7, repetition_penalty=1.3), given=[[8, 9, 10], [11]])
    ],
    "preempted": lambda runs: [runs.ask(list(range(3, 33)), replace(HOT, presence_penalty=1.0)) for _ in range(3)],
}
CHANGES = {"preempted": {"blocks": 6, "prefix_cache": False}}


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    return tiny_llama(**MODEL)[1]


class Counted:
    """An executor that counts its steps."""

    def __init__(self, runner: Runner):
        self._runner, self.steps = runner, 0

    @property
    def depth(self) -> int:
        return self._runner.depth

    def execute(self, plan: StepPlan) -> Pending:
        self.steps += 1
        return self._runner.execute(plan)


@contextmanager
def watched() -> Iterator[None]:
    with Unseen() as watch, watch.kernels():
        yield


@pytest.fixture(scope="module")
def device(checkpoint: MemoryCheckpoint) -> tuple[Runner, LaggingQueue, Recordings]:
    queue, recordings = LaggingQueue(watched), Recordings()
    return build(checkpoint, CONFIG, device=Device(queue=queue, graphs=recordings)), queue, recordings


@pytest.fixture(scope="module")
def waiting(checkpoint: MemoryCheckpoint) -> Runner:
    return build(checkpoint, replace(CONFIG, backend="reference"))


def played(runner: Runner, name: str, executor: Counted | None = None) -> list[Asked]:
    assert runner.adapters is not None
    held = {one: random_adapter(runner.adapters.shapes, seed) for seed, one in enumerate((ONE, OTHER))}
    runs = Runs(
        runner, executor=executor, adapters=held, max_running=6, max_model_len=64, step_tokens=64,
        **CHANGES.get(name, {}),
    )  # fmt: skip
    asked = SCENARIOS[name](runs)
    runs.finish()
    return asked


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_step_is_one_copy_and_no_look(device, waiting, name) -> None:
    runner, queue, _ = device
    counted, before = Counted(runner), queue.submitted
    got, want = played(runner, name, counted), played(waiting, name)
    assert queue.submitted - before == counted.steps > 3
    for one, other in zip(got, want, strict=True):
        assert {end.reason for end in one.finished.values()} <= {FinishReason.LENGTH, FinishReason.STOP}
        assert one.outputs == other.outputs
        assert len(one.prompt) == len(other.prompt)
    assert name != "preempted" or sum(one.end.preemptions for one in got) > 0


def test_decodes_with_adapters_are_recorded_with_head_and_embedding_and_equal_steps_one_by_one(checkpoint) -> None:
    recordings, found = Recordings(), []
    for graphs in (recordings, None):
        runner = build(checkpoint, CONFIG, device=Device(queue=LaggingQueue(), graphs=graphs))
        found.append([one.outputs for one in played(runner, "adapters")])
    assert found[0] == found[1]
    assert len({tuple(one[0]) for one in found[0][:3]}) == 3, "each adapter has its say"
    assert [key.rows for key in recordings.replayed] == [4] * 3, "of four decode steps the first runs as it is"


LOOKS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x.any()),
    "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: (x > 0).nonzero(),
    "mask": lambda x: x[x > 0],
    "store by mask": lambda x: x.__setitem__(x > 0, 0),
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: torch.repeat_interleave(x),
    "a tensor": lambda x: x + torch.tensor([1]),
    "a list as index": lambda x: x[[0, 1]],
    "from_numpy": lambda x: torch.from_numpy(__import__("numpy").zeros(1)),
}


@pytest.mark.parametrize("name", LOOKS)
def test_the_watch_sees_a_planted_look(name) -> None:
    x = torch.arange(3)
    with pytest.raises(Looked), Unseen():
        LOOKS[name](x)


def test_the_watch_lets_work_pass() -> None:
    x = torch.arange(6.0)
    with Unseen():
        y = x.view(2, 3)[:, 1:].clone()
        y[torch.arange(2), torch.arange(2)] += 1
        y.masked_fill_(y > 3, 0.0)
        y = torch.cat((y, y.topk(1).values), dim=1).index_select(1, torch.arange(2)).argsort(stable=True)
    assert y.shape == (2, 2)
