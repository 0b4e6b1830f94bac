"""The `octavo` command without anything to serve."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.cli.announce import curl
from octavo.cli.serve import served_name
from octavo.supervise.stack import StackConfig, router_command, shared_out, worker_command
from shared.supervise.process import as_event
from worker import auto

CONFIG = StackConfig(model="/models/m", served_name="m", worker_arguments=("--max-running", "4", "--threads", "7"))

HEAVY = ("torch", "transformers", "grpc", "aiohttp", "fastapi", "numpy", "google.protobuf")


def flag(arguments: tuple[str, ...], name: str) -> str:
    """The value that wins, as argparse reads it: the last."""
    return arguments[len(arguments) - 1 - arguments[::-1].index(name) + 1]


@pytest.mark.parametrize("command", [[], ["serve"], ["chat"], ["bench", "serving"], ["pull"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    script = (
        "import sys; from octavo.cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        f"except SystemExit as end: print([name for name in {HEAVY!r} if name in sys.modules], end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"
    assert done.stdout.startswith("usage: octavo")


def test_importing_the_package_loads_neither_client_nor_grpc() -> None:
    script = "import sys, octavo; print('grpc' in sys.modules); octavo.Client; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "m", "--port", "70000"],
        ["serve", "m", "--workers", "0"],
        ["serve", "m", "--prot", "1"],
        ["bench"],
        ["nothing"],
        ["version", "--", "--max-running", "3"],
    ],
)
def test_wrong_arguments_end_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "m", "--port", "x"], "'x' is not a whole number from 0 to 65535"),
        (["serve", "m", "--workers", "two"], "'two' is not a whole number from 1 to 64"),
        (["serve", "m", "--drain-seconds", "-1"], "'-1' is not a number of at least 0"),
        (["serve", "m", "--drain-seconds", "inf"], "'inf' is not a number of at least 0"),
        (["chat", "--target", "somewhere"], "'somewhere' is no host:port"),
        (["chat", "--target", "http://h:1"], "'http://h:1' is no host:port"),
        (["chat", "--temperature", "hot"], "'hot' is not a number from 0 to 2"),
        (["chat", "--max-tokens", "0"], "'0' is not a whole number of at least 1"),
        (["bench", "serving", "--url", "foo"], "'foo' is no URL such as http://"),
        (["bench", "serving", "--url", "http://h:port"], "'http://h:port' is no URL"),
        (["bench", "intrusion", "--url", "foo"], "'foo' is no URL such as http://"),
        (["bench", "serving", "--requests", "-3"], "'-3' is not a whole number of at least 1"),
    ],
)
def test_what_is_wrong_with_an_argument_is_told_in_words(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert words in told
    assert " _" not in told.splitlines()[-1], "a private name"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["bench", "serving", "--url", "http://127.0.0.1:1", "--workload", "/absent.json"],
            "/absent.json: No such file",
        ),
        (["bench", "serving", "--url", "http://127.0.0.1:1"], "no answer from the server"),
        (["bench", "intrusion", "--url", "http://127.0.0.1:1"], "no answer from the server"),
        (["chat", "--target", "127.0.0.1:1"], "127.0.0.1:1: the router cannot be reached"),
    ],
)
def test_what_cannot_be_reached_is_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("octavo: ")
    assert words in line


def test_version_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("octavo ")


def test_what_follows_a_lone_dash_dash_is_the_workers() -> None:
    assert cli.split(["serve", "demo", "--", "--max-running", "4"]) == (["serve", "demo"], ["--max-running", "4"])
    assert cli.split(["serve", "demo"]) == (["serve", "demo"], [])


def test_a_worker_comes_back_at_its_port_and_given_flags_win() -> None:
    first = worker_command(CONFIG, None).arguments
    again = worker_command(CONFIG, {"event": "listening", "address": "127.0.0.1:4321"}).arguments
    assert (flag(first, "--port"), flag(again, "--port")) == ("0", "4321")
    assert flag(first, "--served-name") == "m"
    assert flag(first, "--max-running") == "4"
    assert flag(first, "--threads") == "7"


def test_the_router_comes_back_at_its_ports() -> None:
    workers = ("127.0.0.1:1", "127.0.0.1:2")
    first = router_command(CONFIG, workers, None).arguments
    event = {"event": "listening", "http": "127.0.0.1:81", "grpc": "[::1]:82"}
    again = router_command(CONFIG, workers, event).arguments
    assert flag(first, "--workers") == "127.0.0.1:1,127.0.0.1:2"
    assert (flag(first, "--http-port"), flag(first, "--grpc-port")) == ("8000", "50051")
    assert (flag(again, "--http-port"), flag(again, "--grpc-port")) == ("81", "82")


def test_the_router_gets_the_store_that_serve_was_given(tmp_path: Path) -> None:
    arguments = router_command(replace(CONFIG, store=tmp_path / "t.db"), ("127.0.0.1:1",), None).arguments
    assert flag(arguments, "--store") == str(tmp_path / "t.db")
    assert "--store" not in router_command(CONFIG, ("127.0.0.1:1",), None).arguments


def test_several_workers_share_the_machine_and_one_chooses_for_itself() -> None:
    assert shared_out(1, 8) == ()
    assert shared_out(2, 8) == ("--threads", "4", "--memory-share", "0.5000")
    assert shared_out(3, 2) == ("--threads", "1", "--memory-share", "0.3333")


def test_several_workers_share_the_cores_that_a_quota_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: (16, 4.5))
    shared = replace(CONFIG, workers=2, worker_arguments=())
    assert flag(worker_command(shared, None).arguments, "--threads") == "2"
    monkeypatch.setattr(auto, "cores", lambda: (16, None))
    assert flag(worker_command(shared, None).arguments, "--threads") == "8"


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("octavo ")


def test_a_model_is_called_by_its_folder_its_file_or_its_hub_id(tmp_path: Path) -> None:
    assert served_name(str(tmp_path), tmp_path) == tmp_path.name
    assert served_name("a/b.gguf", Path("a/b.gguf")) == "b"
    assert served_name("demo", tmp_path / "smollm2") == "smollm2"
    assert served_name("org/name", tmp_path / "snapshots" / "abc") == "org/name"


def test_only_json_objects_with_an_event_are_events() -> None:
    assert as_event('{"event": "ready"}') == {"event": "ready"}
    assert [as_event(line) for line in ("", "ready", "1", '["event"]', "{}", '{"event": 1}')] == [None] * 6


def test_the_curl_line_is_one_shell_command_with_a_json_body() -> None:
    line = curl("m", "127.0.0.1:8000")
    assert line.startswith("curl http://127.0.0.1:8000/v1/chat/completions ")
    assert "\n" not in line


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "some/model.gguf", "a/b/c"])
def test_a_path_that_leads_nowhere_is_not_looked_for_on_the_hub(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", name]) == 1
    assert capsys.readouterr().err == f"octavo: {name}: No such file or directory\n"
