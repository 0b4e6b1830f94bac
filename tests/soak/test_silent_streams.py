"""Streams on which nothing is said for long, while the client's transport asks whether anybody is there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc

pytestmark = pytest.mark.soak

SILENT_SECONDS = 15.0
PINGING = (
    ("grpc.keepalive_time_ms", 1_000),  # 30 times as often as ours
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),  # no end of them
)


class Silent(worker_pb2_grpc.WorkerServicer):
    """Says nothing."""

    async def Serve(self, request_iterator: AsyncIterator[pb.Up], context: Any) -> AsyncIterator[pb.Down]:
        await asyncio.Event().wait()
        yield pb.Down()


@asynccontextmanager
async def silence(server: grpc.aio.Server) -> AsyncIterator[Any]:
    """A call on which neither side writes."""
    worker_pb2_grpc.add_WorkerServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[*PINGING]) as channel:
            call = worker_pb2_grpc.WorkerStub(channel).Serve()
            await call.write(pb.Up(ping=pb.Ping(nonce=1)))
            yield call
    finally:
        await server.stop(None)


async def end_of(call: Any) -> str | None:
    """Why it ended; None where it outlived the silence."""
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            await call.read()
    except TimeoutError:
        return None
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return "it ended well"


async def test_router_case_17_a_silent_stream_outlives_many_pings() -> None:
    async with silence(rpc.server(receive_limit=1 << 20)) as call:
        assert await end_of(call) is None


async def test_the_same_pings_end_a_stream_of_a_server_that_counts_them() -> None:
    """So that the one above can fail."""
    strict: Sequence[tuple[str, int]] = (("grpc.http2.min_ping_interval_without_data_ms", 300_000),)
    async with silence(grpc.aio.server(options=[*strict])) as call:
        assert "Too many pings" in (await end_of(call) or "")
