"""Hundreds of adversarial requests against real router processes beside neighbours: right statuses, nothing revealed, service goes on.

Afterwards no key stands in any log, trace, answer or process list, and what was served was charged to its sender alone.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from protos import admin_pb2, admin_pb2_grpc
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from router.tenancy.keys import new_key
from router.tenancy.records import Scope
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery
from shared import rpc
from tests.fakes.engine import fake_worker
from tests.fakes.processes import Processes, processes
from tests.fakes.tenancy import tenant
from tests.fakes.traces import Collector, collector
from tests.hostile.strangers import ASK, FORGED, Cast, Try, bearer, send, tries

MAX_BODY = 128 << 10
AT_ONCE = 8
SLOW = 60  # connections that never finish what they began
NEIGHBOURS = 4
BOUND = 90.0
HEAD_SECONDS = "3"


@dataclass(kw_only=True)
class Scene:
    """Router processes with two tenants and an operator. `told` grows by every answer that a stranger got."""

    running: Processes
    said: dict[str, Any]
    store: SqliteStore
    cast: Cast
    traces: Collector
    told: list[str] = field(default_factory=list)


async def _key(store: SqliteStore, of: str, name: str, scope: Scope = Scope.INFER, expires: float | None = None) -> str:
    key = new_key(tenant=of, name=name, scopes=frozenset({scope}), now=time.time(), expires=expires)
    await store.add_key(key.record, actor="test")
    return key.text


async def _cast(store: SqliteStore) -> Cast:
    names = [
        tenant("mallory", models=("tiny",)),
        tenant("acme", labels={"plan": "gold-9731"}),
        tenant("ops"),
        tenant("gone"),
    ]
    await store.put_tenants(names, actor="test")
    cast = Cast(
        own=await _key(store, "mallory", "main"),
        other=await _key(store, "acme", "main"),
        admin=await _key(store, "ops", "main", Scope.ADMIN),
        expired=await _key(store, "mallory", "old", expires=time.time() - 1),
        revoked=await _key(store, "mallory", "revoked"),
        orphan=await _key(store, "gone", "main"),
    )
    await store.revoke_key("mallory", "revoked", actor="test")
    await store.delete_tenant("gone", actor="test")
    return cast


@asynccontextmanager
async def scene(tmp: Path) -> AsyncIterator[Scene]:
    store = SqliteStore(tmp / "octavo.db")
    cast = await _cast(store)
    flags = (
        *("--admin-listen", "127.0.0.1:0", "--admin-grpc-listen", "127.0.0.1:0", "--log-level", "debug"),
        *("--max-body-bytes", str(MAX_BODY), "--head-seconds", HEAD_SECONDS, "--body-seconds", HEAD_SECONDS),
    )
    async with fake_worker() as worker, collector() as traces:
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.address}
        path = tmp / "octavo.db"
        async with processes(tmp, "--workers", worker.target, *flags, store=path, **otlp) as running:
            said = await running.told("listening")
            await running.told("ready")
            yield Scene(running=running, said=said, store=store, cast=cast, traces=traces)
    await store.aclose()


async def _answer(address: str, data: bytes) -> tuple[int, str]:
    """The status and all else of the first answer; 0 where the connection ends without one."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(BOUND):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            text = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in text.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            text += await reader.readexactly(int(length[0].partition(b":")[2]) if length else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, ""
        finally:
            writer.close()
    return int(text.split()[1]), text.decode("latin-1")


async def _attack(scene: Scene, all_: list[Try]) -> list[str]:
    """What was answered otherwise than it should be."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: Try) -> str | None:
        async with room:
            status, text = await _answer(scene.said["http"], each.data)
        scene.told.append(text)
        shaped = status == 200 or status == 405 or '"error"' in text
        return None if status in each.statuses and shaped else f"{each.name}: {status} {text[:300]}"

    return [wrong for wrong in await asyncio.gather(*map(one, all_)) if wrong]


async def _neighbour(scene: Scene, number: int) -> str:
    """A stream of the other tenant's, which ends as it should."""
    body = {
        "model": "tiny",
        "prompt": [5 + number, 6],
        "max_tokens": 30,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {scene.cast.other}"}
    async with scene.running.client(scene.said["http"]) as http:
        async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])


@asynccontextmanager
async def _neighbours(scene: Scene) -> AsyncIterator[None]:
    """Streams of another tenant run as long as the block does, and say what they say when alone."""

    async def once() -> list[str]:
        return await asyncio.gather(*(_neighbour(scene, number) for number in range(NEIGHBOURS)))

    async def rounds() -> None:
        while not over.is_set():
            assert await once() == quiet

    over, quiet = asyncio.Event(), await once()
    running = asyncio.create_task(rounds())
    try:
        yield
    finally:
        over.set()
        await running


@asynccontextmanager
async def _slow(scene: Scene) -> AsyncIterator[None]:
    """Heads and bodies that never end; each is told so, or closed, in time."""
    host, _, port = scene.said["http"].rpartition(":")
    whole = send("POST", "/v1/completions", ASK, bearer(scene.cast.own))
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(SLOW)]
    for number, (_, writer) in enumerate(opened):
        writer.write((whole[:40], whole[:-1], b"")[number % 3])
    yield
    for reader, writer in opened:
        async with asyncio.timeout(BOUND):
            said = await reader.read()
        assert not said or said.startswith(b"HTTP/1.1 408"), said[:100]
        writer.close()


async def _over_grpc(scene: Scene) -> None:
    """The operators' service is not on the public listener, whoever asks; forged metadata changes nothing."""
    metadata = (("authorization", f"Bearer {scene.cast.admin}"),)
    async with rpc.channel(scene.said["grpc"]) as channel:
        for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(f"/octavo.v1.Admin/{method.name}")(b"", metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        ask = pb.GenerateRequest(
            prompt_tokens=pb.TokenIds(ids=[5]), sampling=pb.Sampling(max_tokens=1, ignore_eos=True)
        )
        for header in FORGED:
            name, _, value = header.partition(": ")
            forged = (("authorization", f"Bearer {scene.cast.own}"), (name, value))
            if name not in ("via", "from", "cookie"):
                assert [one async for one in pb_grpc.InferenceStub(channel).Generate(ask, metadata=forged)]


async def _at_the_operators(scene: Scene) -> None:
    """Tenants are told nothing there, over either edge; an admin's key is let in."""
    async with httpx.AsyncClient(base_url=f"http://{scene.said['admin_http']}", timeout=BOUND) as http:
        for key, status in ((scene.cast.own, 403), (scene.cast.revoked, 401), (scene.cast.admin, 200)):
            answer = await http.get("/admin/v1/tenants", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status
            if status != 200:
                scene.told.append(answer.text)
    async with rpc.channel(scene.said["admin_grpc"]) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        told = await stub.ListTenants(admin_pb2.ListTenantsRequest(), metadata=(("x-api-key", scene.cast.admin),))
        assert [one.name for one in told.tenants] == ["acme", "mallory", "ops"]


def _command_lines() -> str:
    """Of every process on this machine."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().decode("latin-1"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return "\n".join(texts)


def _revealing(scene: Scene, texts: list[str]) -> list[str]:
    """Texts that hold another's name, a key, or something of the server's inside."""
    words = [
        "gold-9731",
        "Traceback",
        ".py",
        "sqlite",
        "octavo.db",
        "site-packages",
        *(key.split("-")[2] for key in scene.cast.all),
    ]
    return [text[-500:] for text in texts if any(word in text for word in words)]


async def test_hundreds_of_adversarial_requests_get_the_right_status_reveal_nothing_and_stop_nobody(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as stage:
        all_ = tries(stage.cast, MAX_BODY)
        assert len(all_) + SLOW >= 300
        assert len({each.name for each in all_}) == len(all_)
        async with _neighbours(stage):
            async with _slow(stage):
                assert await _attack(stage, all_) == []
                await _over_grpc(stage)
                await _at_the_operators(stage)
        command_lines = _command_lines()
        stage.running.process.terminate()
        assert await stage.running.ended() == 0
        charges = Counter(line.charge.tenant for line in await stage.store.usage(UsageQuery(key="main")))
        spans = [str(request) for request in stage.traces.requests]
    served = sum(each.served for each in all_)
    assert charges["mallory"] >= served
    assert set(charges) == {"mallory", "acme"}
    assert _revealing(stage, stage.told) == []
    assert len(stage.running.log) > len(all_) / 2, "the log was kept"
    assert len(stage.traces.spans) > len(all_) / 2, "so were the traces"
    for name, texts in (("log", stage.running.log), ("trace", spans), ("process list", [command_lines])):
        held = [text for text in texts if any(key.split("-")[2] in text for key in stage.cast.all)]
        assert held == [], name
    assert not [line for line in stage.running.log if "Traceback" in line or " ERROR " in line]
    assert [event for event in stage.running.events if event["event"] == "notice"] == []
