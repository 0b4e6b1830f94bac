"""The engine bench on a tiny model: what it counts is what was asked for."""

from functools import partial
from pathlib import Path

import pytest
import torch

from kernels.backend import backend
from octavo.bench import engine, rates
from octavo.bench.engine import Loaded
from octavo.bench.workload import Item, Probes, Workload
from shared.errors import Internal, InvalidRequest
from tests.fakes.tiny_models import write_tiny_llama
from worker.config import WorkerConfig

PROBES = Probes(prefill=(Item(prompt=(9,) * 64, output_tokens=1),), decode=(Item(prompt=(8,) * 16, output_tokens=9),))
MIX = Workload(
    name="by hand",
    items=tuple(Item(prompt=tuple(range(3, 3 + length)), output_tokens=output) for length, output in ((5, 4), (40, 9))),
    probes=PROBES,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    path = write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny", num_hidden_layers=1)
    return WorkerConfig(
        model=str(path), max_running=4, step_tokens=32, max_model_len=256, prefix_cache=False, backend="reference"
    )


@pytest.fixture(scope="module")
def loaded(settings: WorkerConfig) -> Loaded:
    return engine.loaded(settings)


def test_all_tokens_of_all_requests_come_and_each_step_is_told(loaded: Loaded) -> None:
    run = loaded.engine.run(MIX.items)
    assert [t.output_tokens for t in run.timelines] == [4, 9]
    assert [len(t.pieces) for t in run.timelines] == [4, 9]
    assert sum(step.rows for step in run.steps) == 13
    assert sum(step.tokens for step in run.steps) == 5 + 3 + 40 + 8  # prompts, and each output but the last as an input
    assert 0 < sum(step.seconds for step in run.steps) <= run.seconds
    assert run.outside_s >= 0


def test_so_many_requests_run_at_a_time_as_they_are_told_to(loaded: Loaded) -> None:
    items = [Item(prompt=(5, 6, 7), output_tokens=6)] * 5
    run = loaded.engine.run(items, concurrency=2)
    assert len(run.timelines) == 5
    assert max(step.rows for step in run.steps) == 2
    starts = sorted(timeline.start for timeline in run.timelines)
    assert starts[2] >= min(timeline.end for timeline in run.timelines)


def test_a_request_that_the_engine_refuses_is_no_figure(loaded: Loaded) -> None:
    with pytest.raises(InvalidRequest, match="refused"):
        loaded.engine.run([Item(prompt=(5,) * 300, output_tokens=4)])


def test_a_model_or_backend_that_does_not_exist_is_told(settings: WorkerConfig, tmp_path: Path) -> None:
    with pytest.raises(Internal, match="nowhere"):
        engine.loaded(WorkerConfig(model=str(tmp_path / "nowhere")))
    with pytest.raises(Internal, match="abacus"):
        engine.loaded(WorkerConfig(model=settings.model, backend="abacus"))


def test_a_report_sets_probes_and_runs_beside_rates_of_the_same_run(loaded: Loaded) -> None:
    said: list[str] = []
    brief = partial(engine.machine_rates(loaded), repeats=1, seconds=0.001, read_bytes=1 << 20, large=64)
    report = engine.measure(loaded, MIX, repeats=2, loads=[(1, 3)], progress=said.append, rates_of=brief)
    assert len(said) == 3
    assert len(report["runs"]) == 2
    assert [(run["concurrency"], run["completed"]) for run in report["at"]] == [(1, 3)]
    for run in report["runs"]:
        assert (run["completed"], run["total_output_tokens"]) == (2, 13)
        assert run["steps"]["decode"]["sampled"] + run["steps"]["mixed"]["sampled"] == 13
        assert {"read", "large", "plain", "backend"} <= set(run["rates"])
        assert 0 < run["bound"]["share_reached"] < 1
        assert run["bound"]["decode_steps"] == 8
    assert report["probes"]["prefill_tokens"] == 64
    assert report["probes"]["ttft_ms"] > 0
    assert report["engine"]["backend"] == "reference"
    assert report["machine"]["cores"] >= 1
    assert report["peak_rss_bytes"] > report["weight_bytes"]


def test_the_packed_rate_is_the_best_one_seen() -> None:
    torch.manual_seed(0)
    seen = rates.measure(torch.float32, backend(), 1, repeats=1, seconds=0.001, read_bytes=1 << 20, large=64)
    limits = rates.limits(seen)
    assert limits.packed == max(rate.median for name, rate in seen.items() if name in ("plain", "onednn", "backend"))
    assert limits.prefill == max(limits.large, limits.packed)
