"""The runner of devices that compute behind the host, on one that lags as far as it may, against the runner that waits for each step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shared.types import Sampling
from tests.fakes.checkpoint import MemoryCheckpoint, tiny_llama
from tests.fakes.device import LaggingQueue, Recordings
from tests.fakes.driver import Driver
from tests.fakes.sampled_runs import RUNNER, Asked, Runs
from worker.execution.build import Device, InsufficientMemory, Runner, build
from worker.execution.device.graphs import CudaGraphs, GraphKey, key_of
from worker.execution.device.memory import FullStep
from worker.execution.device.runner import DeviceRunner
from worker.execution.device.staging import Staging
from worker.plan import Chunk, SampleRow, SlotStart, StepPlan, TableWrite

CONFIG = replace(RUNNER, backend="reference", max_running=20)
PLAIN = Sampling(temperature=0, max_tokens=24, ignore_eos=True)
KINDS = [
    PLAIN,
    replace(PLAIN, temperature=0.9, seed=3, top_p=0.9, logprobs=3),
    replace(PLAIN, temperature=0.8, seed=4, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias=((11, 5.0),)),
    replace(PLAIN, bad_words=((50, 51),), min_tokens=4, ignore_eos=False, stop_token_ids=(33, 44), logprobs=0),
    replace(PLAIN, temperature=1.2, seed=6, allowed_token_ids=tuple(range(40, 80)), prompt_logprobs=2),
]


@pytest.fixture(scope="module")
def checkpoint() -> MemoryCheckpoint:
    return tiny_llama()[1]


@pytest.fixture(scope="module")
def waiting(checkpoint: MemoryCheckpoint) -> Iterator[Runner]:
    made = build(checkpoint, CONFIG)
    yield made
    made.close()


def lagging(checkpoint: MemoryCheckpoint, *, graphs: bool = True, **changes: Any) -> tuple[Runner, LaggingQueue, Any]:
    queue, recordings = LaggingQueue(), Recordings() if graphs else None
    return (
        build(checkpoint, replace(CONFIG, **changes), device=Device(queue=queue, graphs=recordings)),
        queue,
        recordings,
    )


def prompts(count: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(9)
    return [torch.randint(3, 199, (n,), generator=draw).tolist() for n in range(3, 3 + 7 * count, 7)]


def mixed(runner: Runner, **changes: Any) -> list[Asked]:
    """All kinds, each twice with its own prompt, a family of four, and some that come while others run."""
    runs, asked = Runs(runner, max_running=20, **changes), []
    for number, prompt in enumerate(prompts(10)):
        asked.append(runs.ask(prompt, KINDS[number % len(KINDS)]))
        if number % 3 == 2:
            runs.step(2)
    asked.append(runs.ask(prompts(2)[1], KINDS[1], n=4))
    runs.finish()
    return asked


def assert_alike(got: list[Asked], expected: list[Asked]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.outputs == other.outputs
        assert one.logprobs == other.logprobs
        assert one.prompt == other.prompt
        assert {i: end.reason for i, end in one.finished.items()} == {i: e.reason for i, e in other.finished.items()}


@pytest.mark.parametrize("graphs", [True, False], ids=["recorded", "operator by operator"])
@pytest.mark.parametrize("changes", [{}, {"step_tokens": 24}, {"blocks": 30, "prefix_cache": False}], ids=str)
def test_results_are_the_same_bit_for_bit_with_steps_one_ahead(checkpoint, waiting, graphs, changes) -> None:
    """In one step, in chunks, and where sequences are preempted."""
    runner, queue, recordings = lagging(checkpoint, graphs=graphs)
    assert isinstance(runner, DeviceRunner)
    assert_alike(mixed(runner, **changes), mixed(waiting, **changes))
    assert queue.most_waiting == 2, "a step was given while another one waited to run, and never two"
    assert recordings is None or len(recordings.replayed) > 10


def test_a_sequence_that_ended_unseen_leaves_no_trace(checkpoint, waiting) -> None:
    """A stop token is seen one step late: what was computed meanwhile is dropped, and the slot's next sequence is right."""
    runner, _, _ = lagging(checkpoint)
    free = Runs(waiting)
    first = free.ask(prompts(1)[0], PLAIN)
    free.finish()
    ends = replace(PLAIN, ignore_eos=False, stop_token_ids=(first.tokens[5],))
    runs = Runs(runner, max_running=1)
    cut, after = runs.ask(prompts(1)[0], ends), runs.ask(prompts(1)[0], PLAIN)
    runs.finish()
    assert cut.tokens == first.tokens[: first.tokens.index(first.tokens[5]) + 1]
    assert after.tokens == first.tokens


def test_a_step_that_fails_raises_from_its_result_and_the_next_runs(checkpoint, monkeypatch) -> None:
    runner, _, _ = lagging(checkpoint, graphs=False)
    drive = Driver(runner, list(range(runner.num_blocks)))
    sequence = drive.add(0, [5, 6, 7], PLAIN)
    runner.execute(drive.start(sequence)).result()
    plan = drive.plan([(sequence, 3)])
    with monkeypatch.context() as patched:
        patched.setattr(runner._model, "forward", lambda *_: 1 / 0)
        failing = runner.execute(plan)
        with pytest.raises(ZeroDivisionError):
            failing.result()
    assert len(runner.execute(plan).result().tokens) == 1


def test_rows_that_fill_a_recorded_step_up_write_to_no_sequence(checkpoint) -> None:
    """Five sequences run as eight: the blocks of nobody's sequences keep what they held."""
    runner, _, recordings = lagging(checkpoint)
    runner._pool.fill(torch.nan)
    five = [SlotStart(slot=slot, tokens=(7, 8), prompt_len=2, sampling=PLAIN, choice_index=0) for slot in range(5)]
    tables = tuple(TableWrite(slot, 0, (10 + slot,)) for slot in range(5))
    runner.execute(StepPlan(step=0, starts=tuple(five), tables=tables)).result()
    for step, position in enumerate((0, 1, 2, 3)):
        chunks = tuple(Chunk(slot, position, 1) for slot in range(5))
        samples = tuple(SampleRow(slot, slot, position + 1) for slot in range(5))
        runner.execute(StepPlan(step=1 + step, chunks=chunks, samples=samples)).result()
    assert set(recordings.replayed) == {GraphKey(8, 401)}
    content = runner._pool.export(list(range(runner.num_blocks)))
    written = [block for block in range(runner.num_blocks) if not torch.isnan(content[block]).all()]
    assert written == [10, 11, 12, 13, 14]


def test_prefills_and_choices_of_one_prefill_are_not_recorded(checkpoint) -> None:
    runner, _, recordings = lagging(checkpoint)
    for _ in range(3):
        runs = Runs(runner, max_running=20, prefix_cache=False)
        runs.ask(prompts(1)[0], replace(PLAIN, max_tokens=1), n=4)
        runs.finish()
    assert recordings.replayed == []


@pytest.mark.parametrize(
    ("rows", "longest", "key"),
    [
        (1, 1, (1, 512)), (3, 512, (4, 512)), (4, 513, (4, 1024)), (5, 9, (8, 512)), (64, 2048, (64, 2048)),
        (65, 2049, (80, 4096)), (129, 1, (160, 512)), (200, 7000, (200, 8000)), (201, 1, None),
    ],
)  # fmt: skip
def test_a_recording_is_chosen_by_rows_and_reach(rows, longest, key) -> None:
    found = key_of(rows, longest, most_rows=200, most_longest=8000)
    assert found == (None if key is None else GraphKey(*key))


def test_what_is_staged_arrives_as_it_was_and_only_once_it_is_sent() -> None:
    staging = Staging()
    arrays = [
        np.arange(5, dtype=np.int32), np.array([[1.5, -2.0]], dtype=np.float32), np.zeros(0, dtype=np.int64),
        np.array([True, False, True]), np.arange(6, dtype=np.int64).reshape(2, 3).T,
    ]  # fmt: skip
    sent = [staging.send(array) for array in arrays]
    with pytest.raises(RuntimeError, match="not been sent"):
        sent[0]()
    staging.arrive(torch.from_numpy(staging.data()))
    for array, there in zip(arrays, sent, strict=True):
        assert np.array_equal(there().numpy(), array)
        assert there().numpy().dtype == array.dtype
        assert there().data_ptr() % 16 == 0 or not array.size


class Memory:
    """A device with so many free bytes, on which every run needs `need` more at once."""

    def __init__(self, free: int, need: int):
        self._free, self._need, self.runs = free, need, 0

    def free(self) -> int:
        return self._free

    def peak(self, run: Callable[[], object]) -> int:
        run()
        self.runs += 1
        return self._need


def test_kv_takes_what_a_full_step_leaves(checkpoint) -> None:
    memory = Memory(10 << 20, 1 << 20)
    device = Device(queue=LaggingQueue(), graphs=None, memory=memory)
    runner = build(checkpoint, replace(CONFIG, kv_bytes=None, memory_share=0.5), device=device)
    block = 3 * 2 * 2 * 16 * 16 * 4  # layers, K and V, heads, positions, head_dim, float32
    assert memory.runs == 1
    assert runner.num_blocks == (int((10 << 20) * 0.94 * 0.5) - (2 << 20)) // block
    assert len(mixed(runner)) == 11


def test_a_full_step_fills_slots_and_tokens() -> None:
    plan = FullStep(slots=6, step_tokens=100, max_model_len=400)
    assert (plan.sequences, plan.length, plan.blocks) == (6, 16, 12)
    assert FullStep(slots=6, step_tokens=100, max_model_len=10).length == 9
    assert FullStep(slots=600, step_tokens=100, max_model_len=10).sequences == 100


def test_too_little_memory_on_a_device_is_told(checkpoint) -> None:
    device = Device(queue=LaggingQueue(), graphs=None, memory=Memory(1 << 20, 1 << 20))
    with pytest.raises(InsufficientMemory, match="not enough memory"):
        build(checkpoint, replace(CONFIG, kv_bytes=None), device=device)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    """Of a device whose memory is too small for any recording."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(CudaGraphs, "_record", full)
    return CudaGraphs()


def test_a_step_that_cannot_be_recorded_runs_as_it_is(graphs: CudaGraphs, caplog: pytest.LogCaptureFixture) -> None:
    key = GraphKey(4, 512)
    for value in range(4):
        assert graphs.run(key, torch.tensor([value]), lambda inputs: inputs + 1).tolist() == [value + 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "told once, tried once"
