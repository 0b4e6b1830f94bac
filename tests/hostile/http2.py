"""Just enough of HTTP/2 (RFC 9113) and HPACK (RFC 7541) to send a gRPC server calls that no gRPC library would."""

import asyncio
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, GOAWAY, CONTINUATION = 0, 1, 3, 4, 7, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame, with its head of nine bytes."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """One header, spelled out and never indexed; both are shorter than 127 bytes."""
    return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The header block of a gRPC call."""
    fixed = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"))
    grpc = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
    return b"".join(literal(name, value) for name, value in (*fixed, *grpc, *more))


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix of five bytes."""
    return bytes([compressed]) + struct.pack(">I", len(data)) + data


def call(path: bytes, data: bytes = b"", more: Iterable[tuple[bytes, bytes]] = (), stream: int = 1) -> bytes:
    """A whole call of one message."""
    block = call_headers(path, more)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, message(data))


async def first_frame_of(kinds: Iterable[int], address: str, sent: bytes, seconds: float = 10.0) -> int:
    """The kind of the first frame of these kinds that a server sends back. Raises EOFError where it closes instead."""
    host, _, port = address.rpartition(":")
    wanted = frozenset(kinds)
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(PREFACE + frame(SETTINGS, 0, 0) + sent)
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] in wanted:
                    return head[3]
        finally:
            writer.close()
