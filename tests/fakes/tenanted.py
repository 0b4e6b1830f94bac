"""Routers over one store, with both edges: what the routers of a host are to their clients."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
from prometheus_client import CollectorRegistry

from protos import inference_pb2_grpc as pb_grpc
from router.adapters.start import registry_of
from router.assemble import start_service
from router.dispatch import RouterService
from router.dispatch.settings import DispatchSettings
from router.edge.gate import Gate
from router.edge.grpc import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.app import make_app
from router.tenancy.records import Charge
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.start import Tenancy, over
from router.tenancy.store import UsageQuery
from shared import rpc
from tests.fakes.router import QUICK
from tests.fakes.scripted_worker import until

MAX_BODY = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Tenanted:
    """One router. `http` is a client without a key; `store` is this router's own view of what all share."""

    store: SqliteStore
    tenancy: Tenancy
    service: RouterService
    http: httpx.AsyncClient
    stub: "pb_grpc.InferenceAsyncStub"
    registry: CollectorRegistry
    address: str
    grpc: str

    async def post(self, key: str | None, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        """A request with this key; a completion of a short prompt unless it says otherwise."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        said = {"model": "tiny", "prompt": [10, 11, 12], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        return await self.http.post(path, json=said | body, headers=headers)

    async def charges(self, **query: Any) -> list[Charge]:
        """The ledger."""
        return [line.charge for line in await self.store.usage(UsageQuery(**query))]

    async def known(self) -> None:
        """Returns once this router knows what was changed before."""
        assert self.tenancy.keyring is not None
        await self.tenancy.keyring.refresh()


@asynccontextmanager
async def tenanted(
    path: Path, *targets: str, clock: Callable[[], float] = time.time, **dispatch: Any
) -> AsyncIterator[Tenanted]:
    """A router over these workers, ready, with its store in the folder `path`. `clock` is tenancy's."""
    registry, named = CollectorRegistry(), CollectorRegistry()
    async with AsyncExitStack() as stack:
        store = SqliteStore(path / "octavo.db", clock=clock)
        tenancy = await stack.enter_async_context(over(store, clock=clock))
        service = await start_service(
            targets, registry=registry, link=QUICK, dispatch=DispatchSettings(**dispatch), cache=path / "cache",
            admission=tenancy.admission, tenants=named, prefixes=tenancy.prefixes, adapters=registry_of(tenancy),
        )  # fmt: skip
        stack.push_async_callback(service.aclose)
        gate = Gate(service, authenticator=tenancy.authenticator)
        app = make_app(gate, registry, version="1", max_body_bytes=MAX_BODY, tenants=named)
        server = await http_server.start(app, "127.0.0.1", 0)
        stack.push_async_callback(server.stop, 1)
        calls = await grpc_server.start(gate, "127.0.0.1", 0)
        stack.push_async_callback(calls.stop, 0)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30, verify=False)
        )
        channel: grpc.aio.Channel = await stack.enter_async_context(rpc.channel(calls.address))
        await until(service.ready, "a worker")
        stub = pb_grpc.InferenceStub(channel)
        yield Tenanted(
            store=store,
            tenancy=tenancy,
            service=service,
            http=http,
            stub=stub,
            registry=registry,
            address=server.address,
            grpc=calls.address,
        )


@asynccontextmanager
async def host(path: Path, targets: Sequence[str], routers: int, **settings: Any) -> AsyncIterator[list[Tenanted]]:
    """Several routers of one host."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(tenanted(path, *targets, **settings)) for _ in range(routers)]
