"""Reads a JSON body: its type and size are checked first, and it is parsed strictly (no NaN, no bottomless nesting)."""

import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any

import pydantic_core
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from router.tenancy.turnstile import Turnstile
from shared.errors import InvalidRequest, RequestTooLarge, Unavailable

AT_ONCE = 64
FREE = 64 << 10
MAX_DIGITS = 18  # of a length; Python refuses to read numbers of thousands

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def _check_type(request: Request) -> None:
    """Accepts JSON, and no type at all: what else is sent as something else was not meant for this API."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, f"content-type must be application/json, not {kind[:100]}")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise HTTPException(415, f"content-encoding {coding[:100]} is not supported; send the body as it is")


def _check_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and (len(length) > MAX_DIGITS or int(length) > limit):
        raise _too_large(limit)


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is longer than the {limit} bytes that this server reads")


class Bodies:
    """The bodies that a server reads: each of at most `limit` bytes, at once no more than `AT_ONCE` of the largest.

    What every body has of its first `FREE` bytes does not count, so that large ones never keep out those of ordinary size.
    """

    def __init__(self, *, limit: int):
        self.limit = limit
        self._room = AT_ONCE * limit

    @asynccontextmanager
    async def read(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The whole body, which counts until the block is left. Raises RequestTooLarge, or Unavailable where others fill the room."""
        body, counted = bytearray(), 0
        try:
            async for chunk in chunks:
                body += chunk
                more = max(0, len(body) - FREE) - counted
                counted, self._room = counted + more, self._room - more
                if len(body) > self.limit:
                    raise _too_large(self.limit)
                if more and self._room < 0:
                    raise Unavailable("this server reads as many large bodies as it can hold", retry_after=1.0)
            yield bytes(body)
        finally:
            self._room += counted


@contextmanager
def _uncollected() -> Iterator[None]:
    """Holds off the garbage collector: it would walk all of a large body several times while that is made, and JSON has no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parsed(body: bytes) -> Any:
    try:
        with _uncollected():
            return pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error


class JsonRequest(Request):
    """A request whose body was read and parsed."""

    def __init__(self, request: Request, body: bytes):
        super().__init__(request.scope, request.receive)
        self._bytes = body
        self._value = _parsed(body)

    async def body(self) -> bytes:
        """As it was sent."""
        return self._bytes

    async def json(self) -> Any:
        """What it says."""
        return self._value


def _turn(request: Request, turns: Turnstile | None) -> AbstractAsyncContextManager[None]:
    return nullcontext() if turns is None else turns.turn(request.state.caller.tenant.id)


def json_route(bodies: Bodies, turns: Turnstile | None = None) -> type[APIRoute]:
    """The class of routes that take JSON bodies; with `turns`, tenants take turns at what their handlers do, which must not be long."""

    class JsonRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                _check_type(request)
                _check_length(request, bodies.limit)
                try:
                    async with bodies.read(request.stream()) as body:
                        async with _turn(request, turns):
                            return await handler(JsonRequest(request, body))
                except ClientDisconnect:
                    return Response(status_code=499)

            return handle

    return JsonRoute
