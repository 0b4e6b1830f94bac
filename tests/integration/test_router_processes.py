"""Several processes of one router on the same ports: shared by all, survived by the rest, seen as one."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from router.edge.ports import listen, reserve
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery
from shared import rpc
from tests.fakes import tenancy
from tests.fakes.processes import Processes, beating, processes
from tests.fakes.scripted_worker import ScriptedWorker, echo, until

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}
LIMIT = 20  # requests a minute
SEEN = re.compile(r'octavo_router_requests_total\{[^}]*outcome="ok"[^}]*process="(\d)"\} ([\d.]+)')


@asynccontextmanager
async def ready(tmp: Path, *flags: str, **more: Any) -> AsyncIterator[tuple[Processes, dict[str, Any]]]:
    """A router of two processes and a worker; what it said when it listened."""
    async with ScriptedWorker(script=echo) as worker, beating(worker):
        async with processes(tmp, "--workers", worker.target, *flags, **more) as running:
            said = await running.told("listening")
            await running.told("ready")
            yield running, said


def served(text: str) -> Counter[str]:
    """Requests answered, by process, as /metrics tells."""
    return Counter({number: int(float(value)) for number, value in SEEN.findall(text)})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_processes_share_both_ports_and_any_of_them_tells_the_metrics_of_all(tmp_path: Path) -> None:
    async with ready(tmp_path) as (running, said):
        async with running.client(said["http"]) as http:
            assert len(set(said["pids"])) == 2
            for asked in range(1, 200):
                assert (await http.post("/v1/completions", json=ASK)).status_code == 200
                shown = served((await http.get("/metrics")).text)
                assert shown.total() == asked
                if len(shown) == 2:
                    break
            assert len(shown) == 2, "one process took every connection"
            pids = {f'process="{n}"': 0 for n in (1, 2)}
            text = (await http.get("/metrics")).text
            assert all(f"process_resident_memory_bytes{{{label}}}" in text for label in pids)
            assert text.count("# TYPE octavo_router_requests_total counter") == 1
        async with rpc.channel(said["grpc"]) as channel:
            request = pb.GenerateRequest(prompt_tokens=pb.TokenIds(ids=[5, 6]), sampling=pb.Sampling(max_tokens=2))
            assert [response async for response in pb_grpc.InferenceStub(channel).Generate(request)]
        running.process.terminate()
        assert await running.ended() == 0
        await until(lambda: not any(map(alive, said["pids"])), "the processes' end")


async def test_a_killed_process_comes_back_while_requests_go_on_and_limits_hold_and_none_outlives_the_supervisor(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "octavo.db")
    key = await tenancy.add(store, "acme", requests_per_minute=LIMIT)
    statuses: Counter[int] = Counter()
    broken = 0
    async with ready(tmp_path, store=tmp_path / "octavo.db") as (running, said):
        async with running.client(said["http"]) as http:
            headers = {"Authorization": f"Bearer {key}"}
            for number in range(3 * LIMIT):
                if number == LIMIT // 2:
                    os.kill(said["pids"][0], signal.SIGKILL)
                try:
                    statuses[(await http.post("/v1/completions", json=ASK, headers=headers)).status_code] += 1
                except httpx.TransportError:
                    broken += 1
            await running.told("notice", "process 1 ended with SIGKILL; starting it again")
            await running.told("notice", "process 1 is ready again")
            assert (await http.get("/ready")).status_code == 200
        running.process.kill()
        await running.ended()
        await until(lambda: not alive(said["pids"][1]), "the other process' end")
    charges = [line.charge for line in await store.usage(UsageQuery())]
    await store.aclose()
    assert set(statuses) == {200, 429}
    assert statuses[200] <= len(charges) <= LIMIT
    assert statuses[200] >= LIMIT - broken
    assert broken <= 2, "only what had reached the killed process may break"


async def test_a_process_that_starts_again_when_the_store_was_deleted_makes_no_empty_one_that_lets_everybody_in(
    tmp_path: Path,
) -> None:
    path, away = tmp_path / "octavo.db", tmp_path / "away.db"
    store = SqliteStore(path)
    await tenancy.add(store, "acme")
    await store.aclose()
    async with ready(tmp_path, store=path) as (running, said), running.client(said["http"]) as http:
        path.rename(away)
        os.kill(said["pids"][0], signal.SIGKILL)
        await running.told("notice", "ended with status 1")
        assert (await http.get("/v1/models")).status_code == 401
        away.rename(path)
        await running.told("notice", "is ready again")
        for _ in range(20):
            assert (await http.get("/v1/models")).status_code == 401


async def test_it_is_ready_only_when_every_process_is(tmp_path: Path) -> None:
    worker = ScriptedWorker(script=echo, port=free_port())
    async with processes(tmp_path, "--workers", worker.target) as running:
        said = await running.told("listening")
        async with running.client(said["http"]) as http:

            async def status(path: str, **body: Any) -> int:
                """Of the process that runs: half of the connections reach the one that was stopped."""
                while True:
                    with contextlib.suppress(httpx.TimeoutException):
                        method = "POST" if body else "GET"
                        return (await http.request(method, path, json=body or None, timeout=0.5)).status_code

            os.kill(said["pids"][1], signal.SIGSTOP)
            async with worker, beating(worker):
                while await status("/v1/completions", **ASK) != 200:
                    await asyncio.sleep(0.05)
                assert [await status("/ready") for _ in range(3)] == [503] * 3
                os.kill(said["pids"][1], signal.SIGCONT)
                await running.told("ready")
                assert await status("/ready") == 200


async def test_sigterm_drains_every_process_and_a_second_one_ends_them_at_once(tmp_path: Path) -> None:
    async with ScriptedWorker() as worker, beating(worker):
        async with processes(tmp_path, "--workers", worker.target, "--drain-seconds", "600") as running:
            said = await running.told("listening")
            await running.told("ready")
            async with running.client(said["http"]) as http:
                stuck = [asyncio.create_task(http.post("/v1/completions", json=ASK)) for _ in range(2)]
                await until(lambda: sum(len(one.submits) for one in worker.conversations) == 2, "both")
                running.process.terminate()

                async def refused() -> bool:
                    return (await http.get("/ready")).status_code == 503

                while not await refused():
                    await asyncio.sleep(0.01)
                assert not any(task.done() for task in stuck)
                running.process.terminate()
                assert await running.ended() == 1
                await asyncio.gather(*stuck, return_exceptions=True)
            await until(lambda: not any(map(alive, said["pids"])), "the processes' end")


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
async def test_a_port_that_others_share_is_taken(flag: str, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0, "tests", shared=True) as taken:
        port = str(taken.getsockname()[1])
        async with processes(tmp_path, "--workers", "127.0.0.1:1", flag, port) as running:
            assert await running.ended() == 1
    assert running.events == []
    (line,) = running.log
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


async def test_what_is_wrong_with_every_process_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "octavo.db").write_text("this is no database, and never was one")
    async with processes(tmp_path, "--workers", "127.0.0.1:1", store=tmp_path / "octavo.db") as running:
        assert await running.ended() == 1
    assert running.events == []
    assert len(running.log) == 1
    assert "not a database" in running.log[0]


def test_a_reserved_port_is_kept_from_others_and_takes_no_connection() -> None:
    with reserve("127.0.0.1", 0, "tests") as held:
        port = held.getsockname()[1]
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        with listen("127.0.0.1", port, "tests", shared=True) as one, listen("127.0.0.1", port, "tests", shared=True):
            with socket.create_connection(one.getsockname()):
                pass
