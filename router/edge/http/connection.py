"""One HTTP connection, bounded in every direction before anything of it reaches the application.

uvicorn's own protocol waits without end for a header or a body that was half sent, reads headers of any size, and answers what it cannot
parse in plain text. This one gives heads and bodies a deadline, bounds the head's bytes, makes room for newcomers by closing whoever
waits longest, drops readers that do not read, answers everything in OpenAI's shape, and closes such that the answer arrives.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools
import pydantic_core
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

LINGER_SECONDS = 2.0  # for the rest of a request that is answered already

_HOP_BY_HOP = {b"connection", b"upgrade", b"http2-settings"}

_LOG = logging.getLogger("octavo.access")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Of one connection, in seconds and bytes; `connections` of the server.

    `head_seconds` runs from the first byte of a request (or the connection) to its last header, `body_seconds` from there to the end of
    its body. `write_seconds` is how long a reader may leave an answer unread, `idle_seconds` how long a connection is kept for a next
    request: longer than the minute for which proxies keep theirs, lest they send one into a connection that is being closed.
    """

    head_seconds: float = 10.0
    body_seconds: float = 60.0
    write_seconds: float = 60.0
    idle_seconds: float = 75.0
    head_bytes: int = 32 << 10
    url_bytes: int = 8 << 10
    connections: int = 4_096


@dataclass(kw_only=True, slots=True)
class Lobby:
    """The connections of a server that wait for a request, the longest waiting first."""

    waiting: "dict[Connection, None]" = field(default_factory=dict)

    def longest_waiting(self) -> "Connection | None":
        """Who would be missed least."""
        return next(iter(self.waiting), None)


class _Lingering:
    """A transport for answers: closing it lets the peer finish its request, so that no reset overtakes the answer."""

    def __init__(self, connection: "Connection", transport: asyncio.Transport):
        self._connection = connection
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        self._connection.leave()


class Connection(HttpToolsProtocol):
    """See the module. `_timer` bounds whatever is awaited of the peer: a head, a body, or that it leaves.

    A request that comes while another is answered (pipelining) is not read: the connection ends after that answer, and the peer asks
    again, as RFC 9112 (9.3.2) wants of it. So what one peer can make the server hold is bounded.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
        lobby: Lobby,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._limits = limits
        self._lobby = lobby
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._begun = False  # some byte of the request that is read now has come
        self._in_body = False  # its head is read, its end is not
        self._deaf = False  # what still comes is dropped
        self._undelivered = 0  # bytes read since the parser last gave something

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Makes room for itself, or refuses itself."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            longest = self._lobby.longest_waiting()
            if longest is None:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "this server has all the connections that it takes")
                return
            longest.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Parses, and watches over what gathers in the parser."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if not self._begun:
            self._begin()
        self._undelivered += len(data)
        self._feed(data)
        if self._undelivered > self._limits.head_bytes and not self._deaf:
            self._refuse_head()

    def eof_received(self) -> None:
        """A request that ends in the middle is told so; then the transport closes, as after any last byte."""
        if self._begun and not self._deaf:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request ended before it was whole")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets it."""
        self._disarm()
        self._unset_write_timer()
        self._lobby.waiting.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer does not read: it has some time to begin again."""
        super().pause_writing()
        self._unset_write_timer()
        self._write_timer = self.loop.call_later(self._limits.write_seconds, self.abort)

    def resume_writing(self) -> None:
        """The peer reads."""
        self._unset_write_timer()
        super().resume_writing()

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """The first byte of a request, or the first after another one's end."""
        super().on_message_begin()
        if not self._begun:
            self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header. Trailers are of no use to anyone here."""
        if not self._deaf and not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the application, where the head is within its bounds."""
        if self._deaf or self.parser.should_upgrade():
            return
        if self._answering():
            self._end_after_answer()
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.url) > self._limits.url_bytes:
            self._refuse_head()
            return
        if fault := self._ambiguity():
            self._refuse(HTTPStatus.BAD_REQUEST, fault)
            return
        super().on_headers_complete()
        self._in_body, self._undelivered = True, 0
        self._arm(self._limits.body_seconds)
        self.cycle.transport = _Lingering(self, self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        self._undelivered = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._deaf or self.parser.should_upgrade():
            return
        self._begun = self._in_body = False
        self._undelivered = 0
        self._disarm()
        self._lobby.waiting.pop(self, None)
        super().on_message_complete()
        if not self._answering():
            self._wait()

    def on_response_complete(self) -> None:
        """The next request may come, or has begun to."""
        super().on_response_complete()
        if not (self._deaf or self._in_body or self.transport.is_closing()):
            self._wait()

    # ----

    def leave(self) -> None:
        """Close, once the peer has sent what it is sending, or a little later."""
        if self._begun or self._deaf:
            self._leave_slowly()
        else:
            self._close()

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        self._lobby.waiting.pop(self, None)
        self.transport.abort()

    def _ambiguity(self) -> str | None:
        """What others on the way may read in another way, which RFC 9112 (3.2, 6.1) has servers refuse."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            return f"a request names one host, not {hosts}"
        if any(coding != b"chunked" for coding in codings):
            return "transfer-encoding must be chunked"
        return None

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        """For a request, some of which may be there."""
        self._lobby.waiting[self] = None
        kept = self.cycle is not None and not self._begun
        self._arm(self._limits.idle_seconds if kept else self._limits.head_seconds)

    def _begin(self) -> None:
        self._begun = True
        if not self._answering():
            self._arm(self._limits.head_seconds)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")

    def _decline(self, rest: bytes) -> None:
        """Reads the request anew as one that offers no other protocol, as RFC 9110 (7.8) allows: the parser would skip its body.

        Java's own client offers HTTP/2 with each request that it sends.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refuse(HTTPStatus.BAD_REQUEST, "this is no proxy")
            return
        closing = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        kept = [(name, value) for name, value in self.headers if name not in _HOP_BY_HOP]
        kept += [(b"connection", b"close")] if closing else []
        lines = b"".join(b"%s: %s\r\n" % header for header in kept)
        self.parser = httptools.HttpRequestParser(self)
        self._begun = False
        self.data_received(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, lines, rest))

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _close(self) -> None:
        """Closes once all is sent, and at once where the peer does not take it."""
        self._disarm()
        self.transport.close()
        self._timer = self.loop.call_later(self._limits.write_seconds, self.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unset_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _expire(self) -> None:
        if self._deaf or not self._begun:
            self._close()
        else:
            part = "body" if self._in_body else "head"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's {part} took too long to arrive")

    def _refuse_head(self) -> None:
        if len(self.url) > self._limits.url_bytes:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL is longer than {self._limits.url_bytes} bytes")
        else:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(status, f"the headers are longer than {self._limits.head_bytes} bytes")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answers for the application, unless the request has (some of) an answer; ends the connection in any case."""
        if self._answering() and not self._in_body:
            self._end_after_answer()
        elif self._in_body and self.cycle.response_started:
            self._close()
        else:
            if self._in_body:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            _LOG.info("refused status=%d reason=%r", status, message)
            self.transport.write(_response(status, message))
            self._leave_slowly()

    def _end_after_answer(self) -> None:
        self._deaf = True
        self.cycle.keep_alive = False

    def _leave_slowly(self) -> None:
        """Say that no more will come, and drop what the peer still sends until it has heard."""
        self._deaf = True
        self._lobby.waiting.pop(self, None)
        self._arm(LINGER_SECONDS)
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()


def _response(status: HTTPStatus, message: str) -> bytes:
    """A whole answer in OpenAI's shape."""
    ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if ours else "invalid_request_error"
    code = status.phrase.lower().replace(" ", "_").replace("-", "_")
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = pydantic_core.to_json({"error": error})
    retry = "retry-after: 1\r\n" if ours else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode() + body


def connections(limits: Limits) -> Callable[..., Connection]:
    """What makes the connections of one server."""
    lobby = Lobby()

    def make(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        return Connection(config, server_state, app_state, _loop, limits=limits, lobby=lobby)

    return make
