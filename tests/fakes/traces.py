"""An OTLP endpoint that keeps what it is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """`requests` are all exports, as they came."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.address = ""

    async def Export(self, request: Any, context: object) -> Any:
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        """Every span."""
        return [span for one in self.requests for r in one.resource_spans for s in r.scope_spans for span in s.spans]


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """One that listens inside the block, at `address`."""
    found, server = Collector(), grpc.aio.server()  # its generated code registers no methods, which ours needs
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)
    found.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield found
    finally:
        await server.stop(0)
