"""From a directory to a worker's parts: what is known of step times afterwards, and what the steps before READY leave behind."""

import os
from pathlib import Path

import pytest

from shared.types import OPEN_TENANT, Choice, Sampling, TokenRequest
from tests.fakes.tiny_models import write_tiny_llama
from worker.assemble import Parts
from worker.config import WorkerConfig
from worker.engine.engine import Engine
from worker.loading import load
from worker.scheduler.scheduler import Scheduler
from worker.scheduler.steptime import ASSUMED, StepShape


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one; and the environment as it was, since loading tells OpenMP its threads."""
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, os.environ.get(name, "2" if name == "OMP_NUM_THREADS" else "PASSIVE"))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "step_times"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def parts(model: Path, sweep: str = "auto") -> Parts:
    config = WorkerConfig(
        model=str(model), kv_memory=8 << 20, max_running=8, step_tokens=128, max_model_len=256, threads=2,
        backend="reference", step_sweep=sweep,
    )  # type: ignore[arg-type]  # fmt: skip
    return load(config)


def proportions(loaded: Parts) -> list[float]:
    """Of the parameters to what is assumed, the first one's taken for 1: all equal where one step was all there was."""
    assert loaded.times is not None
    ratios = [each / assumed for each, assumed in zip(loaded.times.parameters, ASSUMED, strict=True)]
    return [ratio / max(ratios) for ratio in ratios]


def outputs(loaded: Parts, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy outputs, all prompts at once."""
    engine = Engine(Scheduler(loaded.scheduler, loaded.info.total_blocks, times=loaded.times), loaded.executor)
    for seq, tokens in enumerate(prompts, 1):
        request = TokenRequest(
            seq=seq, request_id=str(seq), tenant=OPEN_TENANT, prompt_tokens=tokens,
            choices=(Choice(handle=seq, index=0),),
            sampling=Sampling(temperature=0.0, max_tokens=12, ignore_eos=True),
        )  # fmt: skip
        engine.submit(1, request)
    told: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for _, delta in engine.step().deltas:
            told[delta.handle - 1] += delta.tokens
    engine.check_integrity()
    assert engine.stats().free_blocks == loaded.info.total_blocks
    return told


def test_the_first_start_measures_and_the_next_one_remembers(model: Path, cache: Path) -> None:
    first = parts(model)
    assert first.times is not None
    assert min(proportions(first)) < 0.9, "more than one step was looked at"
    assert len(list(cache.iterdir())) == 1
    second = parts(model)
    assert second.times is not None
    assert second.times.parameters == first.times.parameters


def test_a_start_that_is_told_to_measure_does(model: Path) -> None:
    first, again = parts(model), parts(model, "always")
    assert first.times is not None
    assert again.times is not None
    assert again.times.parameters != first.times.parameters


def test_without_a_sweep_one_step_scales_what_is_assumed_and_nothing_is_kept(model: Path, cache: Path) -> None:
    loaded = parts(model, "never")
    assert min(proportions(loaded)) > 0.99
    loaded.close()
    assert not cache.exists()


def test_what_serving_taught_is_kept_when_the_worker_ends(model: Path) -> None:
    first = parts(model)
    assert first.times is not None
    for _ in range(50):
        first.times.observe(StepShape(rows=4, samples=4, context=400), 1.0)
    first.close()
    second = parts(model)
    assert second.times is not None
    assert second.times.parameters == first.times.parameters


def test_a_cache_that_holds_something_else_does_not_keep_a_worker_from_starting(model: Path, cache: Path) -> None:
    parts(model)
    (file,) = cache.iterdir()
    file.write_bytes(b"\x00" * 100)
    loaded = parts(model)
    assert loaded.times is not None
    assert loaded.times.measured
    assert file.read_bytes()[:1] == b"{", "and it is written anew"


def test_a_sweep_changes_no_token(model: Path) -> None:
    prompts = [
        [(7 * number + 3 * place) % 60 for place in range(length)] for number, length in enumerate([40, 3, 100, 17])
    ]
    swept, never = parts(model, "always"), parts(model, "never")
    assert outputs(swept, prompts) == outputs(never, prompts)
