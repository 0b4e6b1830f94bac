"""The HTTP server, inside the event loop that the caller runs. Signals are the caller's."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from router.edge.http.connection import Limits, connections
from router.edge.ports import BACKLOG, joined, listen

DESCRIPTORS_KEPT = 256  # for everything that is no HTTP connection


class _Embedded(uvicorn.Server):
    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Listens once `start` has returned; `address` is what it got, also for port 0."""

    def __init__(self, server: uvicorn.Server, task: "asyncio.Task[None]", address: str):
        self._server = server
        self._task = task
        self.address = address

    async def stop(self, grace: float) -> None:
        """Refuses new connections at once; gives running requests `grace` seconds, then cancels them."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace))
        self._server.should_exit = True
        await self._task


def _affordable(limits: Limits) -> Limits:
    """No more connections than this process may have files open: what cannot be accepted cannot be told so either."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return limits
    most = max(open_files // 2, open_files - DESCRIPTORS_KEPT)
    return replace(limits, connections=min(limits.connections, most))


async def start(
    app: ASGIApp, host: str, port: int, limits: Limits | None = None, *, shared: bool = False
) -> HttpServer:
    """`shared`: other processes listen there too. Raises OSError where the port is taken."""
    bound = listen(host, port, "HTTP", shared=shared)
    affordable = _affordable(limits or Limits())
    config = uvicorn.Config(
        app,
        http=connections(affordable),  # type: ignore[arg-type]
        timeout_keep_alive=affordable.idle_seconds,  # type: ignore[arg-type] # seconds, whole or not
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
    )
    server = _Embedded(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    address = joined(host, bound.getsockname()[1])
    await server.listening.wait()
    return HttpServer(server, task, address)
