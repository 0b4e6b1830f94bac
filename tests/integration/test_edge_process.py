"""The router as a process of its own: what it prints, how it drains, how it fails."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared import rpc
from tests.fakes.scripted_worker import ScriptedWorker, echo, until
from tests.fakes.traces import collector

ROOT = Path(__file__).parents[2]
BOUND = 30  # seconds

# Runs the router where importing torch fails and is told.
WITHOUT_TORCH = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    tried = []
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            self.tried.append(name)
            raise ImportError(name)

sys.meta_path.insert(0, Blocker())
from router.main import main
status = main(sys.argv[1:])
print("tried", Blocker.tried, flush=True)
sys.exit(status)
"""


@dataclass(frozen=True, kw_only=True)
class Router:
    """A running router process and what it said when it listened."""

    process: asyncio.subprocess.Process
    http: httpx.AsyncClient
    grpc: str

    async def event(self) -> dict[str, str]:
        """The next line on stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            return json.loads(await self.process.stdout.readline())

    async def unready(self) -> None:
        """Wait until it says that it is not ready."""
        async with asyncio.timeout(BOUND):
            while True:
                if (await self.http.get("/ready")).status_code == 503:
                    return
                await asyncio.sleep(0.01)

    async def ended(self) -> tuple[int, str]:
        """Exit status, and what is left on stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            rest = await self.process.stdout.read()
            return await self.process.wait(), rest.decode()


def spawn(
    arguments: Sequence[str], *, tmp: Path, runner: Sequence[str] = ("-m", "router.main"), otlp: str = ""
) -> Coroutine[Any, Any, asyncio.subprocess.Process]:
    environ = {**os.environ, "OCTAVO_CACHE": str(tmp), "PYTHONPATH": str(ROOT), "OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
    pipe = asyncio.subprocess.PIPE
    return asyncio.create_subprocess_exec(
        sys.executable, *runner, *arguments, cwd=ROOT, env=environ, stdout=pipe, stderr=pipe
    )


@asynccontextmanager
async def router(
    tmp: Path, worker: str, *flags: str, runner: Sequence[str] = ("-m", "router.main"), otlp: str = ""
) -> AsyncIterator[Router]:
    ports = ("--http-port", "0", "--grpc-port", "0", "--workers", worker)
    process = await spawn([*ports, *flags], tmp=tmp, runner=runner, otlp=otlp)
    assert process.stdout is not None
    assert process.stderr is not None
    log = asyncio.create_task(process.stderr.read())  # kept empty, or the process would stop at a full pipe
    try:
        async with asyncio.timeout(BOUND):
            line = await process.stdout.readline()
        assert line, (await log).decode()
        listening = json.loads(line)
        assert listening["event"] == "listening"
        async with httpx.AsyncClient(base_url=f"http://{listening['http']}", timeout=BOUND) as client:
            yield Router(process=process, http=client, grpc=listening["grpc"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await log


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ASK = {"prompt": [5, 6, 7], "max_tokens": 3}


async def test_it_listens_gets_ready_serves_both_apis_and_exits_zero_without_torch(tmp_path: Path) -> None:
    async with ScriptedWorker(script=echo) as worker:
        async with router(tmp_path, worker.target, runner=("-c", WITHOUT_TORCH)) as running:
            assert await running.event() == {"event": "ready"}
            assert (await running.http.get("/ready")).status_code == 200
            answer = await running.http.post("/v1/completions", json=ASK)
            assert answer.json()["usage"]["completion_tokens"] == 3
            assert answer.json()["model"] == "tiny"
            metrics = (await running.http.get("/metrics")).text
            assert 'octavo_router_requests_total{model="tiny",outcome="ok"} 1.0' in metrics
            async with rpc.channel(running.grpc) as channel:
                stub = pb_grpc.InferenceStub(channel)
                request = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")]))
                chunks = [chunk async for response in stub.Generate(request) for chunk in response.chunks]
            assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
            running.process.terminate()
            assert await running.ended() == (0, "tried []\n")


async def test_without_workers_it_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with router(tmp_path, f"127.0.0.1:{free_port()}") as running:
        assert (await running.http.get("/health")).status_code == 200
        assert (await running.http.get("/ready")).status_code == 503
        assert (await running.http.post("/v1/completions", json=ASK)).status_code in (404, 503)
        running.process.send_signal(signal.SIGINT)
        assert await running.ended() == (0, "")


async def test_sigterm_finishes_what_runs_and_refuses_what_is_new(tmp_path: Path) -> None:
    async with ScriptedWorker() as worker, router(tmp_path, worker.target) as running:
        await running.event()
        old = asyncio.create_task(running.http.post("/v1/completions", json=ASK))
        (submit,) = await worker.submits()
        worker.now.load()
        running.process.terminate()
        await running.unready()
        assert (await running.http.post("/v1/completions", json=ASK)).status_code == 503
        assert not old.done()
        echo(worker.now, submit)
        answer = await old
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 3)
        assert await running.ended() == (0, "")


async def test_what_outlasts_the_drain_gets_an_error_and_the_worker_an_abort_or_hangup(tmp_path: Path) -> None:
    async with ScriptedWorker() as worker, router(tmp_path, worker.target, "--drain-seconds", "0.3") as running:
        await running.event()
        stuck = asyncio.create_task(running.http.post("/v1/completions", json={**ASK, "stream": True}))
        (submit,) = await worker.submits()
        worker.now.load()
        worker.now.tokens(submit.choices[0].handle, [5], acked=submit.seq)
        running.process.terminate()
        answer = await stuck
        last = answer.text.rstrip().rsplit("\n\n", 1)[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] in ("unavailable", "cancelled")
        assert await running.ended() == (0, "")
        await until(lambda: worker.now.aborts or worker.now.over)


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with ScriptedWorker() as worker, router(tmp_path, worker.target, "--drain-seconds", "600") as running:
        await running.event()
        stuck = asyncio.create_task(running.http.post("/v1/completions", json=ASK))
        await worker.submits()
        worker.now.load()
        running.process.terminate()
        await running.unready()
        running.process.terminate()
        assert (await running.ended())[0] == 1
        await asyncio.gather(stuck, return_exceptions=True)


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
async def test_a_taken_port_is_one_line_and_status_1(flag: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "--grpc-port" if flag == "--http-port" else "--http-port"
        arguments = [flag, str(port), other, "0", "--workers", "127.0.0.1:1", "--log-level", "error"]
        process = await spawn(arguments, tmp=tmp_path)
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    (line,) = err.decode().splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "workers"),
        (["--workers", "nonsense"], "nonsense"),
        (["--workers", "a:1", "--http-port", "x"], "--http-port"),
        (["--workers", "a:1", "--http-port", "70000"], "http_port"),
        (["--workers", "a:1", "--policy", "dice"], "--policy"),
        (["--workers", "a:1", "--what"], "--what"),
    ],
)
async def test_a_wrong_configuration_is_named_with_status_2(arguments: list[str], named: str, tmp_path: Path) -> None:
    process = await spawn(arguments, tmp=tmp_path)
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert named in err.decode().splitlines()[-1]


async def test_spans_are_exported_in_the_callers_trace_and_go_on_to_the_worker(tmp_path: Path) -> None:
    trace, parent = "a" * 32, "b" * 16
    async with collector() as traces, ScriptedWorker(script=echo) as worker:
        async with router(tmp_path, worker.target, otlp=traces.address) as running:
            await running.event()
            await running.http.post("/v1/completions", json=ASK, headers={"traceparent": f"00-{trace}-{parent}-01"})
            (submit,) = await worker.submits()
            running.process.terminate()
            assert (await running.ended())[0] == 0
    (span,) = traces.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    assert submit.traceparent == f"00-{trace}-{span.span_id.hex()}-01"
