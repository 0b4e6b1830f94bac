"""Operators drain workers, over both of their API's edges and by the command: what runs ends there or goes on elsewhere, nothing fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.cli.main import main
from router.admin.service import Admin
from router.edge.grpc.admin import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.admin.app import make_admin_app
from router.request import GenerateRequest
from router.tenancy.keyring import Keyring
from router.tenancy.records import Scope
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import AuditQuery
from shared import rpc
from shared.errors import Unavailable
from tests.fakes import tenancy
from tests.fakes.engine import FakeWorker, fake_worker
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import until

STREAMS = 4
LONG = 24  # output tokens


@dataclass(kw_only=True)
class Site:
    """A router over two workers, with its operators' edges. `key` is an admin's."""

    router: Router
    workers: list[FakeWorker]
    store: SqliteStore
    http: httpx.AsyncClient
    grpc: str
    key: str

    async def quiet(self) -> list[list[int]]:
        """What the streams give in peace."""
        return [await self.run(number) for number in range(STREAMS)]

    async def run(self, number: int) -> list[int]:
        generation = await self.router.service.generate(asked(number))
        return [token for piece in await collect(generation) for token in piece.tokens]

    async def begun(self) -> "list[asyncio.Task[list[int]]]":
        """All streams, in the middle of their outputs, the workers' steps held."""
        for worker in self.workers:
            worker.gate.hold()
        tasks = [asyncio.create_task(self.run(number)) for number in range(STREAMS)]
        for worker in self.workers:
            if not worker.hub.draining:
                await until(lambda worker=worker: running(worker) > 0 or worker.gate.waiting, "work")  # type: ignore[misc]
                worker.gate.allow(4)
                await until(lambda worker=worker: worker.gate.waiting, "a held step")  # type: ignore[misc]
        return tasks

    def open(self) -> None:
        for worker in self.workers:
            worker.gate.open()

    async def command(self, *arguments: str) -> int:
        return await asyncio.to_thread(main, ["worker", *arguments])


def running(worker: FakeWorker) -> int:
    return worker.hub.engine.stats.running


def asked(number: int) -> GenerateRequest:
    """Half of them greedy, half drawn by a seed."""
    tokens = range(20 + number, 60 + number)
    return request(*tokens, max_tokens=LONG, ignore_eos=True, temperature=float(number % 2), seed=number)


async def serving(worker: FakeWorker) -> bool:
    async with rpc.channel(worker.target) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(fake_worker(info={"worker_id": name})) for name in ("w1", "w2")]
        targets = [worker.target for worker in workers]
        router = await stack.enter_async_context(
            running_router(*targets, tmp_path=tmp_path, policy="round_robin", resume_wait=60.0)
        )
        await router.ready(workers=2)
        store = SqliteStore(tmp_path / "octavo.db")
        stack.push_async_callback(store.aclose)
        key, keyring = await tenancy.add(store, "ops", scopes=frozenset({Scope.ADMIN})), Keyring(store)
        await keyring.refresh()
        admin = Admin(store, keyring, router.service.workers, router.service.drain)
        http = await http_server.start(make_admin_app(admin, max_body_bytes=1 << 16), "127.0.0.1", 0)
        stack.push_async_callback(http.stop, 1)
        calls = await grpc_server.start(admin, lambda: True, "127.0.0.1", 0)
        stack.push_async_callback(calls.stop, 0)
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://{http.address}/admin/v1", headers={"authorization": f"Bearer {key}"}, timeout=20
            )
        )
        yield Site(router=router, workers=workers, store=store, http=client, grpc=calls.address, key=key)


async def test_c15_what_has_not_ended_at_an_operators_deadline_goes_on_elsewhere_token_for_token(site: Site) -> None:
    quiet = await site.quiet()
    tasks = await site.begun()
    hasty, other = site.workers
    there = running(hasty)
    drain = asyncio.create_task(site.http.post(f"/workers/{hasty.target}:drain", json={"deadline_seconds": 0}))
    await until(lambda: site.router.metric("workers", state="draining") == 1, "the notice")
    assert not await serving(hasty)
    assert await serving(other)
    site.open()
    told = (await drain).json()
    assert told == {"worker_id": hasty.hub.info.worker_id, "unfinished": there}
    assert there > 0
    assert await asyncio.gather(*tasks) == quiet
    assert site.router.metric("resubmits_total", model="tiny", reason="drained") == there
    assert site.router.metric("resubmits_total", model="tiny", reason="lost") == 0
    (line,) = await site.store.audit_lines(AuditQuery(action="worker.drain"))
    assert (line.record.actor, line.record.subject, line.record.before) == ("ops/main", hasty.target, "ready")
    served = other.hub.engine.stats.step_seq
    assert await site.run(0) == quiet[0]
    assert other.hub.engine.stats.step_seq > served
    assert running(hasty) == 0


async def test_the_command_waits_for_what_runs_and_whoever_drains_all_workers_is_told(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = await site.quiet()
    tasks = await site.begun()
    first, second = site.workers
    through = ("--target", site.grpc, "--api-key", site.key, "--json")
    one = asyncio.create_task(site.command("drain", first.hub.info.worker_id, *through))
    two = asyncio.create_task(site.command("drain", second.target, "--direct", "--deadline", "60"))
    await until(lambda: site.router.metric("workers", state="draining") == 2, "both notices")
    assert not one.done()
    assert not two.done()
    with pytest.raises(Unavailable, match="no worker serves tiny now"):
        await site.router.service.generate(asked(0))
    site.open()
    assert await asyncio.gather(one, two) == [0, 0]
    assert await asyncio.gather(*tasks) == quiet
    assert site.router.metric("resubmits_total", model="tiny", reason="drained") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"worker_id": first.hub.info.worker_id, "unfinished": 0}
    assert said.err == f"{second.target} ({second.hub.info.worker_id}) has drained\n"
    assert await site.command("list", *through) == 0
    states = {worker["target"]: worker["state"] for worker in json.loads(capsys.readouterr().out)}
    assert states == {first.target: "draining", second.target: "draining"}


async def test_a_drain_of_nobody_or_for_no_time_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for worker, body, status, param in (
        ("10.0.0.1:1", {}, 404, "worker"),
        (site.workers[0].target, {"deadline_seconds": -1}, 400, "deadline_seconds"),
        (site.workers[0].target, {"deadline_seconds": 1e9}, 400, "deadline_seconds"),
        (site.workers[0].target, {"deadline_seconds": True}, 400, "deadline_seconds"),
        (site.workers[0].target, {"deadline": 1}, 400, "deadline"),
    ):
        answer = await site.http.post(f"/workers/{worker}:drain", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert await site.command("drain", "nobody", "--target", site.grpc, "--api-key", site.key) == 1
    assert await site.command("drain", "nobody", "--direct") == 1
    assert await site.command("drain", "127.0.0.1:1", "--direct") == 1
    assert await site.command("drain", site.grpc, "--direct") == 1
    assert await site.command("drain", site.workers[0].target, "--target", site.grpc, "--api-key", "x") == 1
    said = capsys.readouterr().err
    assert "no worker 'nobody'" in said
    assert "'nobody' is no host:port" in said
    assert "127.0.0.1:1: the worker cannot be reached" in said
    assert f"{site.grpc}: what listens there is no worker (with --direct, WORKER is where octavo-worker listens" in said
    assert not any(worker.hub.draining for worker in site.workers)
    assert not await site.store.audit_lines(AuditQuery(action="worker.drain"))
