"""The worker as a process of its own: what it prints, how it drains, how it fails."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernels.cpu.isa import LEVELS, levels
from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.types import FinishReason
from tests.fakes.engine import played_router, token_request
from tests.fakes.scripted_worker import until
from tests.fakes.tiny_models import write_tiny_llama
from worker.servicer.settings import StreamSettings

ROOT = Path(__file__).parents[2]
BOUND = 60  # seconds
SMALL = ("--kv-memory", "8MiB", "--max-model-len", "512", "--threads", "1", "--check-integrity")


# Runs a worker without a model whose second step does what the first argument says.
BROKEN = """
import sys, threading
import worker.main
from tests.fakes import tiny_tokenizers
from tests.fakes.executor import FakeExecutor
from tests.fakes.scripted_worker import worker_info
from worker.assemble import Parts
from worker.scheduler.config import SchedulerConfig

bundle = tiny_tokenizers.bundle()

class Broken(FakeExecutor):
    def execute(self, plan):
        if plan.step == 1 and sys.argv[1] == "die":
            raise SystemExit("no more")
        if plan.step >= 1 and sys.argv[1] == "fail":
            raise RuntimeError("the device is gone")
        if plan.step == 1 and sys.argv[1] == "hang":
            threading.Event().wait()
        return super().execute(plan)

config = SchedulerConfig(
    max_running=4, step_tokens=64, max_model_len=256, vocab_size=266, model_revision="r", eos_token_ids=(2,),
    max_waiting=9, max_waiting_per_tenant=9,
)
executor = Broken(num_blocks=32, slots=4, vocab_size=266)
info = worker_info(bundle, total_blocks=32)
def close():
    print("the executor is closed", file=sys.stderr)

parts = Parts(executor=executor, scheduler=config, info=info, tokenizer=bundle, close=close)
worker.main.load = lambda settings: parts
sys.exit(worker.main.main(["--model", "none", "--port", "0", "--drain-seconds", "0.01"]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A running worker process and what it said when it listened."""

    process: asyncio.subprocess.Process
    said: dict[str, str]

    @property
    def target(self) -> str:
        return self.said["address"]

    async def event(self) -> dict[str, str]:
        """The next line on stdout."""
        return await _event(self.process)

    async def ended(self) -> tuple[int, str]:
        """Exit status, and what is left on stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(BOUND):
            rest = await self.process.stderr.read()
            return await self.process.wait(), rest.decode()


async def _event(process: asyncio.subprocess.Process) -> dict[str, str]:
    assert process.stdout is not None
    async with asyncio.timeout(BOUND):
        return json.loads(await process.stdout.readline())


async def _spawn(
    arguments: Sequence[str], cache: Path, runner: Sequence[str] = ("-m", "worker.main")
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *runner,
        *arguments,
        cwd=ROOT,
        env={**os.environ, "OCTAVO_CACHE": str(cache), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )


@asynccontextmanager
async def running(model: Path, cache: Path, *more: str, ready: bool = True) -> AsyncIterator[Worker]:
    """Of a real model. Killed at the end if it still runs."""
    process = await _spawn(["--model", str(model), "--port", "0", *SMALL, *more], cache)
    async with _watched(process) as worker:
        if ready:
            event = await worker.event()
            assert (event["event"], event["model"]) == ("ready", model.name)
        yield worker


@asynccontextmanager
async def broken(how: str, cache: Path) -> AsyncIterator[Worker]:
    """Without a model, and with an engine that ends badly in its second step."""
    async with _watched(await _spawn([how], cache, runner=("-c", BROKEN))) as worker:
        assert (await worker.event())["event"] == "ready"
        yield worker


@asynccontextmanager
async def _watched(process: asyncio.subprocess.Process) -> AsyncIterator[Worker]:
    try:
        worker = Worker(process=process, said=await _event(process))
        assert worker.said["event"] == "listening"
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _health(target: str) -> int:
    async with rpc.channel(target) as channel:
        return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status


async def test_it_listens_loads_serves_and_stops_with_0(model, tmp_path):
    async with running(model, tmp_path, "--metrics-port", "0") as worker:
        assert await _health(worker.target) == health_pb2.HealthCheckResponse.SERVING
        async with rpc.channel(worker.target) as channel:
            info = await worker_pb2_grpc.WorkerStub(channel).GetInfo(pb.GetInfoRequest())
        assert (info.model, info.max_model_len, info.block_size, info.max_running) == ("tiny", 512, 16, 64)
        async with played_router(worker.target) as router:
            for seq in (1, 2):
                await router.submit(token_request(seq, seq, length=40, first=1, max_tokens=9, seed=5, temperature=1.0))
                (end,) = await router.finished(seq)
                assert (end.reason, end.output_tokens, end.cached_tokens) == (FinishReason.LENGTH, 9, 32 * (seq - 1))
            assert router.tokens(1) == router.tokens(2)
            metrics = await _scrape(worker.said["metrics"])
            assert "octavo_worker_up 1.0" in metrics
            assert 'octavo_worker_tokens_total{kind="output"} 18.0' in metrics
            worker.process.send_signal(signal.SIGTERM)
            assert await router.ended() is grpc.StatusCode.OK
        status, log = await worker.ended()
        assert status == 0, log
        assert "Traceback" not in log


async def _scrape(address: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(BOUND):
        answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_signal_lets_what_runs_finish(model, tmp_path):
    async with running(model, tmp_path) as worker, played_router(worker.target) as router:
        await router.submit(token_request(1, 1, max_tokens=120))
        await until(lambda: router.tokens(1), "tokens")
        worker.process.send_signal(signal.SIGINT)
        await router.came("draining")
        await until(lambda: router.over, "the stream's end")
        assert len(router.tokens(1)) == 120
        assert router.finish(1).reason is FinishReason.LENGTH
        assert (await worker.ended())[0] == 0


async def test_what_is_left_when_the_drain_ends_is_told_so(model, tmp_path):
    async with running(model, tmp_path, "--drain-seconds", "0") as worker, played_router(worker.target) as router:
        await router.submit(token_request(1, 1, max_tokens=450))
        await until(lambda: router.tokens(1), "tokens")
        worker.process.send_signal(signal.SIGTERM)
        (end,) = await router.finished(1)
        assert end.reason is FinishReason.ABORTED
        assert (await worker.ended())[0] == 0


async def test_a_second_signal_ends_it_at_once(model, tmp_path):
    async with running(model, tmp_path) as worker, played_router(worker.target) as router:
        for seq in range(1, 65):
            await router.submit(token_request(seq, seq, max_tokens=490))
        await until(lambda: router.tokens(1), "tokens")
        worker.process.send_signal(signal.SIGTERM)
        await router.came("draining")
        worker.process.send_signal(signal.SIGTERM)
        status, _ = await worker.ended()
        assert status == 1
        assert len(router.of("finish")) < 64


async def test_a_signal_while_it_loads_stops_it_with_0(model, tmp_path):
    async with running(model, tmp_path, ready=False) as worker:
        worker.process.send_signal(signal.SIGTERM)
        status, log = await worker.ended()
        assert status == 0, log


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["--model", "/absent/model"], 1, "/absent/model: no such file"),
        ([], 2, "--model is required"),
        (["--model", "m", "--step-tokens", "8", "--max-running", "9"], 2, "step_tokens"),
        (["--model", "m", "--kv-memory", "lots"], 2, "--kv-memory"),
    ],
)
async def test_what_is_wrong_is_one_line_and_a_status(arguments, status, named, tmp_path):
    process = await _spawn(["--port", "0", *arguments], tmp_path)
    async with asyncio.timeout(BOUND):
        _, log = await process.communicate()
    assert process.returncode == status
    assert named in log.decode().splitlines()[-1]
    assert "Traceback" not in log.decode()


async def test_memory_that_does_not_do_is_told_with_numbers(model, tmp_path):
    """Case C49."""
    process = await _spawn(
        ["--model", str(model), "--port", "0", "--kv-memory", "4KiB", "--max-model-len", "512"], tmp_path
    )
    async with asyncio.timeout(BOUND):
        _, log = await process.communicate()
    assert process.returncode == 1
    last = log.decode().splitlines()[-1]
    assert last.startswith("octavo-worker: ")
    assert "512" in last
    assert "Traceback" not in log.decode()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kv-memory", "100TiB"], "kv_memory is"),
        (["--backend", "cpu"], "no C++ compiler"),
        (["--cpu-isa", next(iter(set(LEVELS) - set(levels())), "amx"), "--backend", "cpu"], ""),
    ],
)
async def test_what_the_machine_lacks_is_one_line(model, tmp_path, monkeypatch, arguments, named):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OCTAVO_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("CXX", raising=False)
    process = await _spawn(["--model", str(model), "--port", "0", *arguments], tmp_path)
    async with asyncio.timeout(BOUND):
        _, log = await process.communicate()
    assert process.returncode == 1
    last = log.decode().splitlines()[-1]
    assert last.startswith("octavo-worker: ")
    assert named in last
    assert "Traceback" not in log.decode()


async def test_a_taken_port_is_told(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await _spawn(["--model", str(model), "--port", port], tmp_path)
        async with asyncio.timeout(BOUND):
            _, log = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in log.decode().splitlines()[-1]


async def test_a_dead_engine_ends_the_process_with_1_and_its_streams_as_unavailable(tmp_path):
    """Case C13."""
    async with broken("die", tmp_path) as worker, played_router(worker.target) as router:
        await router.submit(token_request(1, 1))
        assert await router.ended() is grpc.StatusCode.UNAVAILABLE
        status, log = await worker.ended()
        assert status == 1
        assert "the engine died" in log


async def test_a_worker_all_of_whose_steps_fail_ends_with_1(tmp_path):
    async with broken("fail", tmp_path) as worker, played_router(worker.target) as router:
        seq = 0
        while not router.over and seq < 100:
            seq += 1
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it may end while a Submit is written
                await router.submit(token_request(seq, seq))
            await until(lambda handle=seq: router.finish(handle) or router.over, "an end")
        assert await router.ended() is grpc.StatusCode.UNAVAILABLE
        assert router.finish(1).reason is FinishReason.ERROR
        assert StreamSettings().failed_steps <= seq <= StreamSettings().failed_steps + 1
        status, log = await worker.ended()
        assert status == 1
        assert "steps have all failed" in log
        assert "the executor is closed" in log


async def test_a_hung_engine_does_not_keep_the_process(tmp_path):
    async with broken("hang", tmp_path) as worker, played_router(worker.target) as router:
        await router.submit(token_request(1, 1))
        await until(lambda: router.tokens(1), "the first step")
        worker.process.send_signal(signal.SIGTERM)
        status, _ = await worker.ended()
        assert status == 1
