"""`octavo serve` as a process: how it starts, what it restarts, how it ends, what it leaves behind."""

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from octavo.client.aio import AsyncClient
from octavo.client.sync import Client
from tests.e2e.conftest import SMALL
from tests.e2e.stack import RunningStack, Serve, alive, until

LONG = 200


def _gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


@contextmanager
def _killed_at_the_end(serve: Serve) -> Iterator[Serve]:
    """Whatever a test does with it, no process is left."""
    try:
        yield serve
    finally:
        serve.process.kill()
        serve.process.wait()


def _answers(stack: RunningStack) -> bool:
    body = {"model": stack.model, "prompt": [5], "max_tokens": 2}
    try:
        return httpx.post(f"http://{stack.http}/v1/completions", json=body, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


async def test_sigterm_lets_what_runs_finish_and_a_taken_port_was_replaced(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = await asyncio.to_thread(
            RunningStack, tiny_model, workers=1, worker_arguments=SMALL, arguments=("--port", str(port))
        )
    with _killed_at_the_end(stack):
        assert stack.told("notice", f"127.0.0.1:{port} is taken")
        assert stack.http != f"127.0.0.1:{port}"
        async with AsyncClient(stack.grpc, timeout=60) as client:
            stream = await client.complete(
                [5], stream=True, max_tokens=LONG, ignore_eos=True, return_tokens=True, temperature=0.0
            )
            await anext(stream)
            stack.terminate()
            async for _ in stream:
                pass
        choice = stream.completion().choices[0]
        assert (len(choice.tokens), choice.finish_reason) == (LONG, "length")
        assert await asyncio.to_thread(stack.wait) == 0, stack.said()
        assert _gone(stack.pids)
        assert [event["text"] for event in stack.events if event["event"] == "state"][-2:] == ["draining", "stopped"]


def test_a_killed_worker_and_a_killed_router_come_back_and_a_killed_supervisor_leaves_no_orphan(
    tiny_model: Path,
) -> None:
    stack = RunningStack(tiny_model, workers=1, worker_arguments=SMALL)
    with _killed_at_the_end(stack):
        os.kill(stack.worker_pids[0], signal.SIGKILL)
        stack.until_told("notice", "worker is ready again")
        until(lambda: _answers(stack), "an answer by the new worker")
        os.kill(stack.router_pid, signal.SIGKILL)
        stack.until_told("notice", "router is ready again")
        until(lambda: _answers(stack), "an answer by the new router at the same address")
        children = _children(stack.process.pid)
        assert len(children) == 2
        assert not set(children) & {*stack.worker_pids, stack.router_pid}
        stack.process.kill()
        until(lambda: _gone(children), "the children's end")


def _children(pid: int) -> list[int]:
    """The processes that have this one as their parent."""
    stats = {path.name: path / "stat" for path in Path("/proc").iterdir() if path.name.isdecimal()}
    parents = {}
    for name, stat in stats.items():
        try:
            parents[int(name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue
    return [child for child, parent in parents.items() if parent == pid]


def test_a_second_signal_cuts_the_drain_short(tiny_model: Path) -> None:
    stack = RunningStack(tiny_model, workers=1, worker_arguments=(*SMALL, "--step-tokens", "1", "--max-running", "1"))
    with _killed_at_the_end(stack), Client(stack.grpc, timeout=60) as client:
        streams = [client.complete([5], stream=True, max_tokens=LONG, ignore_eos=True) for _ in range(8)]
        next(streams[0])
        stack.terminate()
        stack.until_told("state", "draining")
        stack.terminate()
        assert stack.wait() == 1, stack.said()
        assert _gone(stack.pids)
        for stream in streams:
            stream.close()


def test_a_signal_on_the_way_up_ends_it_well(tiny_model: Path) -> None:
    serve = Serve(str(tiny_model), "--port", "0", "--grpc-port", "0", worker_arguments=SMALL)
    with _killed_at_the_end(serve):
        serve.until_told("state", "loading")
        children = until(lambda: _children(serve.process.pid), "a child")
        assert serve.stop() == 0, serve.said()
        assert serve.told("ready") is None
        assert _gone(children)


@pytest.mark.parametrize(
    ("worker_arguments", "status", "line"),
    [
        ((), 1, "config.json"),
        (("--max-running", "none"), 2, "--max-running"),
        (("--no-such-flag",), 2, "--no-such-flag"),
    ],
)
def test_what_can_never_start_ends_with_the_workers_own_line(
    tmp_path: Path, worker_arguments: tuple[str, ...], status: int, line: str
) -> None:
    serve = Serve(str(tmp_path), "--port", "0", "--grpc-port", "0", worker_arguments=worker_arguments)
    with _killed_at_the_end(serve):
        assert serve.wait() == status, serve.said()
        notice = serve.told("notice", f"cannot serve {tmp_path.name}: ")
        assert notice is not None, serve.said()
        assert line in notice["text"]
        assert "Traceback" not in serve.said()


def test_a_tokenizer_that_no_router_serves_ends_the_command_by_its_step(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    path = model / "tokenizer.json"
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "decoder": decoder}))
    serve = Serve(str(model), "--port", "0", "--grpc-port", "0", worker_arguments=SMALL)
    with _killed_at_the_end(serve):
        assert serve.wait() == 1, serve.said()
        assert serve.told("notice", "cannot serve model: "), serve.said()
        assert "tokenizer.json: decoder of kind ['WordPiece']" in serve.said()
