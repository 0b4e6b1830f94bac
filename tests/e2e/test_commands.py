"""`octavo chat` and `octavo bench` against a stack, as a user runs them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.stack import RunningStack

OCTAVO = (sys.executable, "-m", "octavo.cli.main")


def _run(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OCTAVO, *arguments], input=said, capture_output=True, text=True, timeout=100, check=False)


def test_chat_answers_each_line_until_the_input_ends(stack: RunningStack) -> None:
    once = _run("chat", "--target", stack.grpc, "--max-tokens", "12", "--temperature", "0", said="Hello\n")
    assert once.returncode == 0, once.stderr
    assert once.stdout.strip()
    told = "Hello\n/reset\nHello\n\n/quit\nnever read\n"
    twice = _run("chat", "--target", stack.grpc, "--max-tokens", "12", "--temperature", "0", said=told)
    assert twice.stdout == once.stdout * 2


def test_chat_tells_what_the_server_refuses_and_goes_on(stack: RunningStack) -> None:
    done = _run("chat", "--target", stack.grpc, "--model", "unheard-of", said="Hello\nHello\n")
    assert done.returncode == 1, "a script is to know of it"
    assert done.stderr.count("unheard-of") >= 2


def test_chat_without_a_router_fails_in_one_line() -> None:
    done = _run("chat", "--target", "127.0.0.1:1", said="Hello\n")
    assert done.returncode == 1
    assert done.stderr.startswith("octavo: ")
    assert len(done.stderr.splitlines()) == 1


@contextmanager
def _held(stack: RunningStack) -> Iterator[None]:
    """Workers that stand still: their answers are not over before somebody looks."""
    for pid in stack.worker_pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stack.worker_pids:
            os.kill(pid, signal.SIGCONT)


def test_ctrl_c_stops_the_answer_and_not_the_conversation(stack: RunningStack) -> None:
    # Hot enough that the end token hardly ever comes soon: greedily, this model says about twenty tokens.
    arguments = ("chat", "--target", stack.grpc, "--temperature", "2", "--max-tokens", "400")
    pipe = subprocess.PIPE
    command = [*OCTAVO, *arguments]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"Hello\n")
            process.stdin.flush()
            assert os.read(process.stdout.fileno(), 1)
            with _held(stack):
                process.send_signal(signal.SIGINT)
                out, errors = process.communicate(b"/reset\n/help\n", timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert b"[stopped]" in out, errors
    assert b"/reset forgets the conversation" in out


def test_bench_writes_a_report_of_a_running_server(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    mix = tmp_path / "mix.json"
    requests = [{"prompt_token_ids": list(range(64, 64 + 9 * i)), "output_len": 5 + i} for i in range(1, 7)]
    mix.write_text(json.dumps({"requests": requests}))
    url = f"http://{stack.http}"
    done = _run(
        *("bench", "serving", "--url", url, "--concurrency", "1", "4", "--workload", str(mix)),
        *("--requests", "12", "--json", str(out)),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert [run["concurrency"] for run in report["runs"]] == [1, 4]
    for run in report["runs"]:
        assert (run["completed"], run["failed"]) == (12, 0)
        assert run["total_input_tokens"] == 2 * sum(len(r["prompt_token_ids"]) for r in requests)
        assert run["total_output_tokens"] == 2 * sum(r["output_len"] for r in requests)
        assert all(
            run[f"{kind}_{name}_ms"] >= 0 for kind in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl")
        )


def test_bench_without_a_server_fails_in_one_line() -> None:
    done = _run("bench", "serving", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("octavo: no answer from the server")
