"""Server-sent events: one `data` line of JSON each. Source: the HTML standard, section 9.2."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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
    return b"data: " + json_line(value) + b"\n\n"


def json_line(value: Any) -> bytes:
    """Its JSON, in which no client sees the end of a line."""
    data = pydantic_core.to_json(value)
    if not data.isascii():
        for end, escaped in _LINE_ENDS:
            data = data.replace(end, escaped)
    return data


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
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time()
        self._turn = asyncio.Lock()

    async def send(self, events: bytes) -> None:
        """Sends at once; nothing for nothing."""
        if events:
            await self._put(events, more=True)

    async def end(self, events: bytes) -> None:
        """Sends the last ones."""
        await self._put(events, more=False)

    @asynccontextmanager
    async def kept_alive(self, seconds: float) -> AsyncIterator[None]:
        """Inside the block a comment is sent after each `seconds` of silence."""
        task = asyncio.create_task(self._comment(seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _comment(self, seconds: float) -> None:
        """One task for all of a stream, that looks at the time now and then: its events set no timers."""
        while True:
            left = self._told_at + seconds - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self.send(KEEPALIVE)

    async def _put(self, events: bytes, *, more: bool) -> None:
        async with self._turn:
            self._told_at = self._loop.time()
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self.headers]})
            await self._send({"type": "http.response.body", "body": events, "more_body": more})
