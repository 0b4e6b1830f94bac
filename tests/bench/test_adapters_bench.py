"""`octavo bench adapters` on a tiny model: what is asked, what is counted, and that all of it runs to its end."""

import argparse
import json
from pathlib import Path

import pytest

from octavo.bench.adapters import beside, measure
from octavo.bench.adapters.cases import Case, arriving, at_once, drawn, parsed, repeated
from octavo.bench.adapters.engine import AdaptedEngine, Ask, Run, Step
from octavo.bench.metrics import Timeline
from octavo.bench.workload import Item, Probes, Workload
from octavo.cli.bench.adapters import part
from octavo.cli.main import main
from tests.accept import adapter_figures
from tests.fakes.tiny_models import write_tiny_llama
from worker.config import WorkerConfig
from worker.loading import load

ITEMS = tuple(Item(prompt=tuple(range(3, 12 + number)), output_tokens=4 + number) for number in range(6))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_where_adapters_fit_they_are_taken_in_turn_and_as_many_run_at_a_time() -> None:
    case = parsed("4/4")
    assert case.adapters(6, seed=1) == [0, 1, 2, 3, 0, 1]
    assert (case.running, parsed("1/1").running, parsed("128/16").running) == (4, 64, 64)


def test_where_they_do_not_fit_number_k_comes_in_proportion_to_one_over_k() -> None:
    numbers = parsed("8/2").adapters(40_000, seed=3)
    assert numbers == drawn(8, 40_000, skew=1.0, seed=3)
    assert numbers.count(0) / numbers.count(3) == pytest.approx(4, rel=0.1)


def test_arrivals_keep_their_moments_whatever_the_number_of_adapters() -> None:
    few, many = (arriving(ITEMS, distinct=n, rate=50.0, seconds=20.0, seed=7) for n in (16, 24))
    assert [ask.at for ask in few] == [ask.at for ask in many]
    assert len(few) == pytest.approx(1000, rel=0.15)
    assert {ask.adapter for ask in many} == set(range(24))


def test_no_two_requests_of_a_run_have_a_prompt_in_common_which_the_base_alone_would_find_in_its_cache() -> None:
    items = tuple(Item(prompt=tuple(range(100 * number, 100 * number + 24)), output_tokens=3) for number in range(1, 5))
    found = repeated(items, 10)
    assert (found[:4], len(found)) == (list(items), 10)
    assert len({item.prompt[:16] for item in found}) == 10
    assert [sorted(item.prompt) for item in found[4:8]] == [list(item.prompt) for item in items]


@pytest.mark.parametrize("text", ["0/4", "4", "a/b", "4/", "1/10000", "cliffs"])
def test_parts_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        part(text)


def test_the_bound_adds_the_reading_of_each_steps_adapters_to_the_bases_time() -> None:
    def run(seconds: float, adapters: int) -> Run:
        line = Timeline(start=0.0, pieces=(1.0,), end=seconds, prompt_tokens=3, output_tokens=100)
        steps = (
            Step(tokens=9, rows=2, adapters=adapters, seconds=1.0),
            Step(tokens=2, rows=2, adapters=adapters, seconds=1.0),
        )
        return Run(timelines=(line,), steps=steps, seconds=seconds, loads=0)

    told = measure._pair(run(2.0, 0), run(4.0, 3), nbytes=10, read=30.0)
    assert (told["bound"], told["retention"]) == (0.5, 0.5)  # 2 s, and 6 adapters of 10 bytes at 30 bytes a second
    assert (told["share_of_bound"], told["adapters_a_step"]) == (1.0, 3.0)


def test_an_engine_with_two_slots_serves_five_adapters_and_counts_what_steps_read(model: Path) -> None:
    settings = WorkerConfig(
        model=str(model), max_adapters=2, kv_memory=16 << 20, max_model_len=128, threads=1, step_sweep="never"
    )
    parts = load(settings)
    wanted = measure.Asked(
        settings=settings, threads=1, workload=None, cases=(Case(distinct=5, slots=2),), parts=(), rank=4, pairs=1,
        requests=5, seconds=1.0, seed=0,
    )  # fmt: skip
    engine = AdaptedEngine(parts, measure._versions(wanted, parts, lambda line: None), prefix_cache=False)
    try:
        run = engine.run(at_once(ITEMS[:5], range(5)))
        assert sorted(line.output_tokens for line in run.timelines) == [4, 5, 6, 7, 8]
        assert run.loads == 5
        assert max(step.adapters for step in run.steps) <= 2
        assert run.adapter_reads >= 8
        bare = engine.run([Ask(item=ITEMS[0]), Ask(item=ITEMS[1], at=0.05)])
        assert (bare.loads, bare.adapter_reads) == (0, 0)
    finally:
        engine.close()
        parts.close()


def test_the_whole_report_of_a_tiny_model(model: Path, tmp_path: Path) -> None:
    mix, out = tmp_path / "mix.json", tmp_path / "report.json"
    mix.write_text(
        json.dumps({"requests": [{"prompt_token_ids": list(item.prompt), "output_len": 8} for item in ITEMS]})
    )
    flags = ("--pairs", "1", "--requests", "6", "--seconds", "1", "--rank", "4", "--threads", "1")
    parts = ("1/1", "3/3", "6/2", "idle", "cliff")
    assert (
        main(
            [
                "bench",
                "adapters",
                "--model",
                str(model),
                "--workload",
                str(mix),
                "--json",
                str(out),
                *flags,
                "--parts",
                *parts,
            ]
        )
        == 0
    )
    report = json.loads(out.read_text())
    assert [case["case"] for case in report["cases"]] == ["1/1", "3/3", "6/2"]
    for case in report["cases"]:
        (pair,) = case["pairs"]
        assert 0 < pair["bound"] < 1
        assert pair["share_of_bound"] == pytest.approx(pair["retention"] / pair["bound"], abs=0.001)
        assert 0 < pair["adapters_a_step"] <= case["slots"]
    assert report["idle"]["ratio"] > 0
    assert report["cliff"]["pairs"][0]["24/16"]["loads"] >= 0
    assert report["adapter"]["rank"] == 4


def test_the_acceptance_run_tells_which_figure_is_not_met() -> None:
    cases = [
        {"case": name, "share_of_bound": share} for name, share in (("1/1", 0.91), ("128/16", 0.79), ("200/200", 0.85))
    ]
    told = adapter_figures.judged({"cases": cases, "idle": {"ratio": 0.99}, "cliff": {"ratio": 2.1}})
    assert [name for name, line in told.items() if not line["passed"]] == ["128/16", "cliff"]


def test_beside_vllm_both_get_the_same_adapters_and_requests_and_a_peer_that_fails_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, seen = tmp_path / "home", tmp_path / "seen"
    python = home / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (home / "models").mkdir()
    (home / "models" / "smollm2-135m").symlink_to(model)
    python.write_text(
        f"#!/bin/sh\nif [ -e {seen} ]; then exit 3; fi\nls $PEERS_HOME/models/loras/* > {seen}\n"
        'echo "startup 9.0s"; echo "probe: TTFT512 20.0 ms; decode bs1 5.0 tok/s"; echo "run0: 50.0 out tok/s"\n'
    )
    python.chmod(0o755)
    scripts = tmp_path / "peers"
    scripts.mkdir()
    (scripts / "vllm_offline.py").touch()
    monkeypatch.setenv("PEERS_HOME", str(home))
    monkeypatch.setenv("OCTAVO_SHARED", str(tmp_path))
    parts = load(
        WorkerConfig(
            model=str(model), max_adapters=8, kv_memory=16 << 20, max_model_len=128, threads=1, step_sweep="never"
        )
    )
    mix = Workload(name="mix", items=ITEMS, probes=Probes(prefill=ITEMS[:1], decode=ITEMS[1:2]))
    try:
        told = beside.measure(parts, measure._reader(parts), mix, 2, lambda line: None)
    finally:
        parts.close()
    assert len(told["rounds"]) == 1
    assert "status 3" in told["failed"]
    assert told["compared"]["output_throughput"]["theirs"] == 50.0
    assert told["compared"]["decode_tokens_per_s"]["ratio"] > 0
    assert seen.read_text().count("adapter_model.safetensors") == 8
