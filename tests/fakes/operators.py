"""The operators' API over a store of its own, with a caller at each of its edges."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx

from protos import admin_pb2_grpc as pb_grpc
from router.admin.service import Admin
from router.edge.grpc.admin import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.admin.app import make_admin_app
from router.fleet.report import WorkerReport
from router.tenancy.keyring import Keyring
from router.tenancy.records import DENIED, AuditRecord, Scope
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import AuditQuery
from shared import rpc
from tests.fakes import tenancy
from tests.fakes.clock import FakeClock
from tests.fakes.tenancy import NOW

WORKER = WorkerReport(target="127.0.0.1:1", state="ready", worker_id="w1", model="tiny", running=2)


@dataclass(kw_only=True)
class Operators:
    """Both edges over one store. `key` is an admin's, `plain` a key that is none; `http` speaks for the admin."""

    store: SqliteStore
    clock: FakeClock
    http: httpx.AsyncClient
    stub: "pb_grpc.AdminAsyncStub"
    key: str
    plain: str
    service: Admin

    async def denied(self) -> list[AuditRecord]:
        """The log's denied calls."""
        await self.service.denials.flushed()
        return [line.record for line in await self.store.audit_lines(AuditQuery(action=DENIED))]

    async def call(self, method: str, request: Any, key: str | None = None) -> Any:
        """Over gRPC, as the admin unless another key is given. Raises OctavoError."""
        metadata = (("authorization", f"Bearer {self.key if key is None else key}"),)
        try:
            return await getattr(self.stub, method)(request, metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            raise rpc.from_rpc_error(error) from error

    async def actions(self) -> list[tuple[str, str, str, str]]:
        """Who did what, on what, from where."""
        lines = [line.record for line in await self.store.audit_lines(AuditQuery(actor="ops/main"))]
        return [(line.actor, line.action, line.subject, line.origin) for line in lines]


@asynccontextmanager
async def operators(folder: Path) -> AsyncIterator[Operators]:
    """Both edges, with one tenant of operators and one that is none."""
    clock = FakeClock()
    clock.now = NOW
    store = SqliteStore(folder / "octavo.db", clock=clock)
    key = await tenancy.add(store, "ops", scopes=frozenset({Scope.ADMIN}))
    plain = await tenancy.add(store, "acme", requests_per_minute=60)
    keyring = Keyring(store, clock=clock)
    await keyring.refresh()
    service = Admin(store, keyring, lambda: [WORKER], tenancy.no_drain, clock=clock)
    http = await http_server.start(make_admin_app(service, max_body_bytes=1 << 16), "127.0.0.1", 0)
    calls = await grpc_server.start(service, lambda: True, "127.0.0.1", 0)
    bearer = {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(
            base_url=f"http://{http.address}/admin/v1", headers=bearer, timeout=20, verify=False
        ) as client,
        rpc.channel(calls.address) as channel,
    ):
        stub = pb_grpc.AdminStub(channel)
        yield Operators(store=store, clock=clock, http=client, stub=stub, key=key, plain=plain, service=service)
    await http.stop(1)
    await calls.stop(0)
    await service.denials.aclose()
    await store.aclose()
