"""Both edges over a fake service, on loopback ports of the system's choice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import openai
from prometheus_client import CollectorRegistry

from protos import inference_pb2_grpc as pb_grpc
from router.edge.gate import Gate
from router.edge.grpc import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.app import make_app
from router.edge.http.connection import Limits
from shared import rpc
from tests.fakes.service import FakeService

MAX_BODY = 256 << 10


@asynccontextmanager
async def http_app(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP application without a server between: for tables of many small requests."""
    app = make_app(Gate(service), CollectorRegistry(), version="1.2.3", max_body_bytes=MAX_BODY)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        yield client


@dataclass(frozen=True, kw_only=True)
class HttpEdge:
    """A running HTTP edge and clients of it."""

    service: FakeService
    gate: Gate
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI


@asynccontextmanager
async def http_edge(
    service: FakeService, *, keepalive: float = 30.0, limits: Limits | None = None
) -> AsyncIterator[HttpEdge]:
    """The HTTP edge on port 0, stopped at the block's end."""
    gate = Gate(service)
    app = make_app(gate, CollectorRegistry(), version="1.2.3", max_body_bytes=MAX_BODY, keepalive=keepalive)
    server = await http_server.start(app, "127.0.0.1", 0, limits)
    url = f"http://{server.address}"
    # Nothing here is TLS, and to read the system's certificates for each client takes longer than most tests.
    bare = openai.DefaultAsyncHttpxClient(verify=False)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20, http_client=bare)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http, client:
            yield HttpEdge(service=service, gate=gate, url=url, http=http, openai=client)
    finally:
        await server.stop(1)


@dataclass(frozen=True, kw_only=True)
class GrpcEdge:
    """A running gRPC edge and a stub of it."""

    service: FakeService
    gate: Gate
    address: str
    stub: "pb_grpc.InferenceAsyncStub"


@asynccontextmanager
async def grpc_edge(service: FakeService) -> AsyncIterator[GrpcEdge]:
    """The gRPC edge on port 0, stopped at the block's end."""
    gate = Gate(service)
    server = await grpc_server.start(gate, "127.0.0.1", 0)
    try:
        async with rpc.channel(server.address) as channel:
            stub = pb_grpc.InferenceStub(channel)
            yield GrpcEdge(service=service, gate=gate, address=server.address, stub=stub)
    finally:
        await server.stop(0)
