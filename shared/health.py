"""grpc.health.v1, answered from a process's own state at the time of asking."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

WATCH_SECONDS = 0.25  # between two looks of a watcher

_Response = health_pb2.HealthCheckResponse
_Context = grpc.aio.ServicerContext[Any, Any]


class HealthServicer(health_pb2_grpc.HealthServicer):
    """SERVING exactly while `ready()` holds, for the whole server ("") and for each of `services`."""

    def __init__(self, ready: Callable[[], bool], services: frozenset[str]):
        self._ready = ready
        self._services = services | {""}

    def _status(self, service: str) -> int:
        if service not in self._services:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if self._ready() else _Response.NOT_SERVING

    async def Check(  # noqa: N802 - the RPC's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        """NOT_FOUND for a service that this server does not have."""
        status = self._status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _Response(status=status)

    async def Watch(  # noqa: N802 - the RPC's name
        self,
        request: health_pb2.HealthCheckRequest,
        context: _Context,
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now, and each time it changes."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield _Response(status=status)
            await asyncio.sleep(WATCH_SECONDS)
