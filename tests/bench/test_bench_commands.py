"""What `octavo bench` takes and refuses, before anything heavy is imported or run."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.bench import workload
from octavo.cli import bench, main
from octavo.cli.bench import engine, peers, sweep
from shared.errors import InvalidRequest

HEAVY = ("torch", "transformers", "grpc", "aiohttp")
KINDS = ("serving", "intrusion", "engine", "kernels", "sweep", "bitwise", "adapters", "peers", "hf")


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add(parser.add_subparsers(required=True))
    return parser.parse_args(["bench", *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_help_of_each_kind_imports_nothing_heavy(kind: str) -> None:
    script = (
        "import sys; from octavo.cli.main import main\n"
        f"try: main(['bench', {kind!r}, '--help'])\n"
        f"except SystemExit as end: print([name for name in {HEAVY!r} if name in sys.modules], end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_the_engine_is_configured_by_the_workers_names() -> None:
    given = (
        "--backend",
        "reference",
        "--threads",
        "1",
        "--dtype",
        "float32",
        "--max-running",
        "5",
        "--step-tokens",
        "96",
    )
    mix = workload.generated(count=300)
    settings = engine.settings(parsed("engine", *given, "--cpu-isa", "avx2", "--no-deterministic"), "m", mix)
    assert (settings.backend, settings.threads, settings.dtype) == ("reference", 1, "float32")
    assert (settings.max_running, settings.step_tokens, settings.cpu_isa) == (5, 96, "avx2")
    assert (settings.deterministic, settings.prefix_cache, settings.max_waiting) == (False, False, 300)


def test_values_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="step_tokens"):
        engine.settings(parsed("engine", "--max-running", "64", "--step-tokens", "8"), "m", workload.generated(count=1))


def test_a_sweep_makes_room_for_its_largest_step() -> None:
    settings = sweep.settings(parsed("sweep", "--batches", "2", "48", "--chunks", "1", "700", "--at", "100", "4"), "m")
    assert (settings.max_running, settings.step_tokens) == (48, 700)


@pytest.mark.parametrize("arguments", [["--at", "8"], ["--at", "0:4"], ["--rounds", "0"], ["--parts", "gpu"]])
def test_numbers_and_loads_that_mean_nothing_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parsed("peers", *arguments)
    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_peer_that_is_not_known_and_a_place_without_peers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PEERS_HOME", str(tmp_path))
    assert main.main(["bench", "peers"]) == 1
    assert f"no peer is installed in {tmp_path}" in capsys.readouterr().err
    assert main.main(["bench", "peers", "--peers", "abacus"]) == 1
    assert "abacus" in capsys.readouterr().err


def test_a_quick_run_keeps_a_few_requests_and_one_probe_of_each_kind() -> None:
    mix = peers.quick(workload.generated())
    assert [len(item.prompt) for item in mix.items] == [len(item.prompt) for item in workload.generated().items[:4]]
    assert {item.output_tokens for item in mix.items} == {peers.QUICK_OUTPUT}
    assert (len(mix.probes.prefill), len(mix.probes.decode)) == (1, 1)


def test_both_our_engine_and_our_server_get_the_same_flags() -> None:
    flags = peers.engine_flags(parsed("peers", "--backend", "cpu", "--threads", "2"))
    assert flags == ("--dtype", "auto", "--max-running", "96", "--threads", "2", "--backend", "cpu")
    arguments = parsed("engine", *flags)
    assert (arguments.backend, arguments.threads, arguments.max_running) == ("cpu", 2, 96)
