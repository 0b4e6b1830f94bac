"""The operators' listeners: beside those of the public API, never on them, and only where they are asked for."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from router.admin.service import Admin
from router.config import RouterConfig
from router.edge.grpc.admin import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.admin.app import make_admin_app
from router.edge.http.connection import Limits
from router.edge.ports import split

GRACE_SECONDS = 2.0  # for answers on their way
CONNECTIONS = 256


@asynccontextmanager
async def admin_edges(
    admin: Admin, settings: RouterConfig, ready: Callable[[], bool], *, shared: bool
) -> AsyncIterator[Mapping[str, str]]:
    """They listen inside the block; their addresses by protocol. Raises OSError where a port is taken."""
    limits = Limits(head_seconds=settings.head_seconds, body_seconds=settings.body_seconds, connections=CONNECTIONS)
    async with AsyncExitStack() as stack:
        addresses = {}
        if settings.admin_listen is not None:
            app = make_admin_app(admin, max_body_bytes=settings.max_body_bytes)
            http = await http_server.start(app, *split(settings.admin_listen), limits, shared=shared)
            stack.push_async_callback(http.stop, GRACE_SECONDS)
            addresses["admin_http"] = http.address
        if settings.admin_grpc_listen is not None:
            rpc = await grpc_server.start(admin, ready, *split(settings.admin_grpc_listen), shared=shared)
            stack.push_async_callback(rpc.stop, GRACE_SECONDS)
            addresses["admin_grpc"] = rpc.address
        yield addresses
