"""Around the whole application: names each request, records it, and tells its name in the answer."""

import re
import uuid
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.edge.record import Record, recorded
from shared.redact import redact

_ID = re.compile(r"[\x21-\x7e]{1,256}")
_PROBES = {"/health", "/ready", "/metrics"}  # asked every few seconds, and told by their metrics

GONE = "499"  # the client left before an answer


def _request_id(headers: Mapping[str, str]) -> str:
    """The caller's own where it can stand in a header and a log, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) and redact(given) == given else uuid.uuid4().hex


class Access:
    """ASGI middleware. Puts `request_id` and `traceparent` into the request's state."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        if scope["path"] in _PROBES:
            await self._named(scope, receive, send, Record(name="", request_id=request_id, traceparent=""))
            return
        name = redact(f"{scope['method']} {scope['path']!r}")
        with recorded(name, request_id=request_id, traceparent=headers.get("traceparent", "")) as record:
            record.status = GONE
            await self._named(scope, receive, send, record)

    async def _named(self, scope: Scope, receive: Receive, send: Send, record: Record) -> None:
        state = scope.setdefault("state", {})
        state.update(request_id=record.request_id, traceparent=record.traceparent)
        await self._app(scope, receive, _told(send, record))


def _told(send: Send, record: Record) -> Send:
    """`send`, with the request's id in its headers and its status in the record."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = str(message["status"])
            header = (b"x-request-id", record.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return tell
