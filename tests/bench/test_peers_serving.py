"""Our own side of the peers' bench, with real processes and a tiny model."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from octavo.bench import intrusion
from octavo.bench.intrusion import Shape
from octavo.bench.peers import programs, servers
from octavo.bench.peers.contest import write_workload
from octavo.bench.peers.processes import run
from octavo.bench.peers.programs import Load, Setting
from octavo.bench.workload import Item, Probes, Workload
from tests.fakes.tiny_models import write_tiny_llama

MIX = Workload(
    name="by hand",
    items=tuple(Item(prompt=tuple(range(3, 3 + length)), output_tokens=6) for length in (9, 30, 17, 5)),
    probes=Probes(
        prefill=(Item(prompt=(9,) * 64, output_tokens=1),), decode=(Item(prompt=(8,) * 16, output_tokens=9),)
    ),
)
LOADS = (Load(concurrency=1, requests=2), Load(concurrency=2, requests=4))


@pytest.fixture(scope="module")
def setting(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    home = tmp_path_factory.mktemp("peers")
    (home / "models").mkdir()
    it = Setting(
        home=home,
        scripts=shared_data.parent / "peers",
        workload=write_workload(MIX, home / "workload.json"),
        requests=len(MIX.items),
        repeats=1,
        loads=LOADS,
        engine=("--max-running", "4", "--step-tokens", "64"),
    )
    write_tiny_llama(it.model, num_hidden_layers=1)
    return it


@pytest.mark.slow
def test_our_server_is_started_put_under_the_peers_client_and_stopped(setting: Setting, tmp_path: Path) -> None:
    bounded = partial(run, timeout=60)
    with servers.octavo(setting, 60) as server:
        pids = [pid for each in server.roles().values() for pid in each]
        found = [servers.under(server, setting, load, bounded, tmp_path / "out.json") for load in LOADS]
    assert [(one["concurrency"], one["requests"]) for one in found] == [(1, 2), (2, 4)]
    for one in found:
        assert one["output_throughput"] > 0
        assert set(one["cores_busy"]) == {"client", "router", "worker", "supervisor"}
        assert sum(one["cpu_share"].values()) == pytest.approx(1.0, abs=0.01)
    assert len(pids) >= 3
    assert not any((Path("/proc") / str(pid)).exists() for pid in pids)


@pytest.mark.slow
def test_long_prompts_arrive_among_streams_of_our_server(setting: Setting) -> None:
    shape = Shape(streams=3, output_tokens=300, prompt_tokens=400, vocabulary=(3, 500))
    with servers.octavo(setting, 60) as server:
        report = asyncio.run(intrusion.measure(server.url, model="m", shape=shape, progress=lambda line: None))
    [run] = report["runs"]
    assert run["intruders"] >= 1
    assert len(run["intruder_ttft_ms"]) == run["intruders"]
    assert run["idle_gaps"] > 0
    assert run["intruded_gaps"] > 0
    assert run["p99_ratio"] > 0


@pytest.mark.slow
def test_our_engine_is_run_in_a_process_of_its_own(setting: Setting, tmp_path: Path) -> None:
    figures = programs.octavo(setting, partial(run, timeout=100), tmp_path / "report.json")
    assert figures["output_throughput"] > 0
    assert figures["ttft_ms"] > 0
    assert set(figures["at"]) == {"1", "2"}
    assert 0 < figures["share_of_bound"] < 1
    assert figures["report"]["engine"]["max_running"] == 4
