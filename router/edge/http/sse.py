"""Server-sent events: one `data` line of JSON each. Source: the HTML standard, section 9.2."""

import logging
from collections.abc import Mapping
from typing import Any

import pydantic_core
from starlette.types import Send

from shared import errors

KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"

_LOG = logging.getLogger(__name__)

# X-Accel-Buffering keeps proxies of nginx's kind from holding tokens back.
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


# Characters that JSON may hold as they are and the standard does not end lines at, but many clients do (Python's str.splitlines).
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\x85\u2028\u2029")


def event(value: Mapping[str, Any]) -> bytes:
    """One event."""
    data = pydantic_core.to_json(value)
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return b"data: " + data + b"\n\n"


def error_event(error: Exception) -> bytes:
    """The event that ends a broken stream. What callers may not see goes to the log."""
    told = errors.from_exception(error)
    if told is not error:
        _LOG.error("a stream failed", exc_info=error)
    return event(errors.body(told))


class Events:
    """A response of events. Its status is sent with the first ones, so that until then another could still be."""

    def __init__(self, send: Send):
        self._send = send
        self.started = False
        self.headers: list[tuple[bytes, bytes]] = []  # beside its own

    async def send(self, events: bytes) -> None:
        """Sends at once; nothing for nothing."""
        if events:
            await self._put(events, more=True)

    async def end(self, events: bytes) -> None:
        """Sends the last ones."""
        await self._put(events, more=False)

    async def _put(self, events: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self.headers]})
        await self._send({"type": "http.response.body", "body": events, "more_body": more})
