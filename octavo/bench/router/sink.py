"""A reader of many HTTP streams over raw sockets: it counts what comes and looks into nothing, so that it costs the least."""

import json
import random
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.bench.router.tokenizer import MARK

_BUFFER = 1 << 18
_END = b"0\r\n\r\n"
_OK = b"HTTP/1.1 200"
_WAIT = 0.05  # seconds between two looks at the time


class Refused(Exception):
    """The router answered with something else than a stream."""


@dataclass(kw_only=True, slots=True)
class Counts:
    """`events` of server-sent events ([DONE] too), `tokens` by their marks, `ended` streams."""

    events: int = 0
    tokens: int = 0
    bytes: int = 0
    ended: int = 0


@dataclass(kw_only=True, slots=True, eq=False)
class _Reader:
    socket: socket.socket
    asked: float = 0.0
    begun: bool = False


def body(max_tokens: int, prompt: str) -> bytes:
    """A streamed completion's."""
    asked = {"model": "simulated", "prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    return json.dumps(asked).encode()


@dataclass(kw_only=True)
class Sink:
    """Streams of one router. `firsts` are seconds from each request to its first token, of those that were asked since `fresh`."""

    address: tuple[str, int]
    counts: Counts = field(default_factory=Counts)
    firsts: list[float] = field(default_factory=list)
    idle: list[_Reader] = field(default_factory=list)
    open: int = 0
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _buffer: bytearray = field(default_factory=lambda: bytearray(_BUFFER))
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def ask(self, max_tokens: int) -> None:
        """One more stream, on a connection that is idle or a new one."""
        reader = self.idle.pop() if self.idle else self._connect()
        data = body(max_tokens, " ".join(f"{self._random.randrange(10_000)}" for _ in range(16)))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        reader.asked, reader.begun = time.perf_counter(), False
        reader.socket.setblocking(True)
        reader.socket.sendall(head.encode() + data)
        reader.socket.setblocking(False)
        self.open += 1

    def _connect(self) -> _Reader:
        reader = _Reader(socket=socket.create_connection(self.address))
        reader.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(reader.socket, selectors.EVENT_READ, reader)
        return reader

    def read(self, until: float) -> int:
        """Take what comes up to that moment (perf_counter); returns how many streams ended."""
        ended = self.counts.ended
        while (now := time.perf_counter()) < until:
            for key, _ in self._selector.select(min(_WAIT, until - now)):
                self._take(key.data)
        return self.counts.ended - ended

    def read_for(self, seconds: float) -> Iterator[int]:
        """Take what comes for so long; gives, in short turns, how many streams ended."""
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            yield self.read(min(end, now + _WAIT))

    def _take(self, reader: _Reader) -> None:
        size = reader.socket.recv_into(self._buffer)
        if not size:
            raise Refused("the router closed a stream")
        data = bytes(self._buffer[:size])
        counts, marks = self.counts, data.count(MARK)
        counts.bytes += size
        counts.tokens += marks
        counts.events += (
            data.count(b"\n") - data.count(b"\r")
        ) // 2  # a chunk's frame has as many of one as of the other
        if not reader.begun:
            self._begin(reader, data, marks)
        if data.endswith(_END):
            counts.ended += 1
            self.open -= 1
            self.idle.append(reader)

    def _begin(self, reader: _Reader, data: bytes, marks: int) -> None:
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(_OK):
            raise Refused(data.decode(errors="replace"))
        if marks:
            reader.begun = True
            self.firsts.append(time.perf_counter() - reader.asked)

    def close(self) -> None:
        """Leave all streams."""
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()
