"""What `octavo bench` takes and refuses, before anything heavy is imported or run."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.bench import workload
from octavo.cli import bench, main
from octavo.cli.bench import engine, peers, sweep
from shared.errors import InvalidRequest
from tests.fakes.tiny_models import write_tiny_llama

HEAVY = ("torch", "transformers", "grpc", "aiohttp")
KINDS = ("serving", "intrusion", "engine", "kernels", "sweep", "bitwise", "adapters", "peers", "hf")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment as it was: some kinds tell OpenMP its threads."""
    for name, value in (("OMP_NUM_THREADS", "2"), ("OMP_WAIT_POLICY", "PASSIVE")):
        monkeypatch.setenv(name, os.environ.get(name, value))


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


@pytest.mark.parametrize(
    ("kind", "flag", "value", "said"),
    [
        ("kernels", "--seconds", "-1", "'-1' is not a number of at least 0"),
        ("kernels", "--seconds", "nan", "'nan' is not a number of at least 0"),
        ("kernels", "--decode", "1:-5", "'-5' is not a whole number of at least 0"),
        ("kernels", "--decode", "1:x", "'x' is not a whole number of at least 0"),
        ("kernels", "--prefill", "0:5", "'0' is not a whole number of at least 1"),
        ("kernels", "--decode", "8", "'8' is not two numbers such as 8:200"),
        ("peers", "--at", "8", "'8' is not C:N such as 8:96"),
        ("kernels", "--ops", "nosuch", "invalid choice: 'nosuch'"),
        ("bitwise", "--seconds", "-1", "'-1' is not a number of at least 0"),
    ],
)
def test_what_no_kernel_can_be_measured_with_is_refused_before_any_is(
    kind: str, flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parsed(kind, flag, value)
    assert end.value.code == 2
    assert f"argument {flag}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [*KINDS, "tenancy", "placement", "router"])
def test_a_report_that_could_not_be_kept_is_refused_before_anything_is_measured(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [kind, *(["trace"] if kind == "placement" else [])]
    for out, said in ((tmp_path / "none" / "x.json", "there is no directory"), (tmp_path, "is not a file's name")):
        with pytest.raises(SystemExit) as end:
            parsed(*given, "--json", str(out))
        assert end.value.code == 2
        assert said in capsys.readouterr().err
    assert parsed(*given, "--json", str(tmp_path / "x.json")).json == tmp_path / "x.json"


@pytest.mark.parametrize(("kind", "flag"), [("sweep", "--svg"), ("peers", "--table")])
def test_so_is_a_plot_or_a_table(kind: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(kind, flag, str(tmp_path / "none" / "x"))
    assert f"argument {flag}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kernels", "attention"), "--kernels needs --tune"),
        (("--tiles", "tiles.json"), "--tiles needs --tune"),
        (("--tries", "3"), "--tries needs --tune"),
        (("--tune", "--ops", "attention"), "--tune takes --kernels"),
    ],
)
def test_flags_of_tuning_and_of_measuring_are_not_silently_left_unread(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", "kernels", *arguments]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["kernels", "bitwise", "engine", "sweep"])
@pytest.mark.parametrize("flags", [("--cpu-isa", "sse"), ("--backend", "abacus")])
def test_instructions_and_backends_that_are_not_there_are_told_in_one_line(
    kind: str, flags: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    assert main.main(["bench", kind, "--model", str(folder), *flags]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("octavo: ")
    assert repr(flags[1]) in said
    assert "there are: auto" in said


@pytest.mark.parametrize("kind", ["kernels", "bitwise", "engine", "sweep", "hf"])
def test_a_folder_without_a_model_is_told_in_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", kind, "--model", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("octavo: ")
    assert str(tmp_path) in said[-1]


@pytest.mark.parametrize("kind", [*KINDS, "tenancy", "placement", "router"])
def test_no_help_shows_what_argparse_would_have_replaced(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(kind, "--help")
    assert "%" not in capsys.readouterr().out.replace("70 % of", "")


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
    assert main.main(["bench", "peers", "--peers", "openvino"]) == 1
    assert f"openvino: not installed in {tmp_path}" in capsys.readouterr().err
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
