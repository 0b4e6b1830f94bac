"""Bytes that are no message are the caller's fault: INVALID_ARGUMENT, where gRPC itself would answer UNKNOWN and log a traceback a call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from shared import rpc
from shared.errors import InvalidRequest

_Context = grpc.aio.ServicerContext[Any, Any]
_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class _Malformed:
    """Stands where a message should."""


def _fault() -> InvalidRequest:
    return InvalidRequest("the request is not the protobuf message that this method takes", param="request")


def _tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def attempt(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Malformed()

    return attempt


def _taking_one(method: Callable[[Any, _Context], Awaitable[Any]]) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def checked(request: Any, context: _Context) -> Any:
        if isinstance(request, _Malformed):
            await rpc.abort(context, _fault())
        return await method(request, context)

    return checked


async def _whole(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Raises InvalidRequest at the first that is malformed."""
    async for request in requests:
        if isinstance(request, _Malformed):
            raise _fault()
        yield request


def _taking_many(method: Callable[[Any, _Context], Awaitable[Any]]) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def checked(requests: AsyncIterator[Any], context: _Context) -> Any:
        return await method(_whole(requests), context)

    return checked


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """For the methods of `service`, whose handlers are coroutines."""

    def __init__(self, service: str):
        self._prefix = f"/{service}/"

    async def intercept_service(self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, with its requests checked."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        kind = next(name for name in ("unary_unary", "unary_stream", "stream_stream") if getattr(handler, name))
        wrap = _taking_many if handler.request_streaming else _taking_one
        parse = _tolerant(handler.request_deserializer)
        return handler._replace(request_deserializer=parse, **{kind: wrap(getattr(handler, kind))})
