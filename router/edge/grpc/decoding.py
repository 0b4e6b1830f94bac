"""Bytes that are no message are the caller's fault: INVALID_ARGUMENT, where gRPC itself would answer UNKNOWN and log a traceback a call."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from shared import rpc
from shared.errors import InvalidRequest, OctavoError

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


def _after(
    check: Callable[[_Context], None], parse: Callable[[bytes], Any], method: Callable[[Any, _Context], Awaitable[Any]]
) -> Callable[[bytes, _Context], Awaitable[Any]]:
    """`method`, whose request is parsed once `check` has let it pass."""

    async def checked(data: bytes, context: _Context) -> Any:
        try:
            check(context)
        except OctavoError as error:
            await rpc.abort(context, error)
        return await method(parse(data), context)

    return checked


def _unparsed(data: bytes) -> bytes:
    return data


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
    """For the methods of `service`, whose handlers are coroutines. `checks`, by method's name, are asked before a request is parsed, and
    raise OctavoErrors."""

    def __init__(self, service: str, checks: Mapping[str, Callable[[_Context], None]] = MappingProxyType({})):
        self._prefix = f"/{service}/"
        self._checks = {self._prefix + name: check for name, check in checks.items()}

    async def intercept_service(self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The method's handler, with its requests checked."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        kind = next(name for name in ("unary_unary", "unary_stream", "stream_stream") if getattr(handler, name))
        wrap = _taking_many if handler.request_streaming else _taking_one
        parse, method = _tolerant(handler.request_deserializer), wrap(getattr(handler, kind))
        check = self._checks.get(handler_call_details.method)
        if check is not None:
            parse, method = _unparsed, _after(check, parse, method)
        return handler._replace(request_deserializer=parse, **{kind: method})
