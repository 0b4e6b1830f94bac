"""A gRPC server that a call's path cannot end.

gRPC's own asyncio server reads the path of a call whose method it does not know as UTF-8 in the loop that accepts all calls; bytes that are
no UTF-8, which anybody can send, end that loop, every call that runs, and the server (seen with grpcio 1.85.3). Methods that generated
code registers are matched as bytes before. This server answers all others itself, UNIMPLEMENTED, and never reads their path.

It stands on internals of grpcio. Where they are others, `server` gives gRPC's own, and the test of this module fails.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server as own

_LOG = logging.getLogger(__name__)

_Options = Sequence[tuple[str, Any]]


class _Core(cygrpc.AioServer):  # type: ignore[misc] # compiled, without types
    """`_make_request_call_future` gives the accepting loop the next call of a registered method, or (None) of any other one."""

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[Any]":
        if method is not None:
            registered: asyncio.Future[Any] = super()._make_request_call_future(method)
            return registered
        return asyncio.ensure_future(self._refuse_unknown())

    async def _refuse_unknown(self) -> None:
        """Answers calls of unknown methods for as long as the server runs; its end raises what the accepting loop expects."""
        loop, nothing = asyncio.get_running_loop(), cygrpc._MethodResolver([], {})
        answering: set[asyncio.Task[None]] = set()
        while True:
            call = await self._request_call()
            answer = cygrpc._handle_rpc("", nothing, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, call, loop, ""))
            answering.add(task)
            task.add_done_callback(answering.discard)


class _Server(own.Server):
    """gRPC's server around that core."""

    def __init__(self, core: _Core, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._server = core


def _hardened(interceptors: list[grpc.aio.ServerInterceptor], options: _Options) -> grpc.aio.Server | None:
    """None where this grpcio is built in another way."""
    names = ("_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
    if not (all(hasattr(cygrpc, name) for name in names) and hasattr(cygrpc.AioServer, "_make_request_call_future")):
        return None
    loop = cygrpc.get_working_loop()
    try:
        core = _Core(loop, None, (), interceptors, own._augment_channel_arguments(options, None), None)
    except (AttributeError, TypeError):
        return None
    return cast(grpc.aio.Server, _Server(core, loop))


def server(interceptors: Sequence[grpc.aio.ServerInterceptor], options: _Options) -> grpc.aio.Server:
    """As grpc.aio.server, for services whose generated code registers their methods. Must be called inside the event loop that serves."""
    hardened = _hardened(list(interceptors), options)
    if hardened is None:
        _LOG.warning("this grpcio %s is not known: a call whose path is no UTF-8 may end its server", grpc.__version__)
        return grpc.aio.server(interceptors=list(interceptors), options=options)
    return hardened
