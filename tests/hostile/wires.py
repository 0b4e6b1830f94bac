"""HTTP requests that are wrong before any parameter of theirs is read, as the bytes on the wire, with the status that they must get."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile.bodies import CHAT, TEXT

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Raw:
    """One request. `half_close`: the sender says that no more will come, and waits."""

    name: str
    data: bytes
    status: int
    half_close: bool = False


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def post(path: str, body: bytes, kind: str = "application/json") -> bytes:
    """A whole request with a body."""
    return head(path, f"content-type: {kind}", f"content-length: {len(body)}") + body


# Not JSON, whatever a lenient reader might make of it.
NO_JSON = (
    b"",
    b"{",
    b"nonsense",
    b'{"prompt": "a"',
    b'{"prompt": "a"} x',
    b'{"prompt": "a",}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a", "temperature": -Infinity}',
    b'{"prompt": "a", "temperature": 01}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\xc3"}',
    b'{"prompt": "\xed\xa0\x80"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\u12"}',
    b'{"prompt": "a\x00b"}',
    b"\xef\xbb\xbf{}",
    b"\x00",
    "{}".encode("utf-16"),
    b"{'prompt': 'a'}",
    b'{"prompt": "a", "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"prompt": "a", "x": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    b"[" * 1_000_000,
    b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
    b'{"prompt": "a", "temperature": 1e999}',
    b'{"prompt": "a", "max_tokens": -1e999}',
)

_CHUNKED = head(TEXT, "content-type: application/json", "transfer-encoding: chunked")
_WHOLE = post(TEXT, b'{"prompt": "a", "max_tokens": 1}')

# What no parser should take, by what is wrong with it.
NO_HTTP = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version": b"GET / HTTP/7.0\r\n\r\n",
    "words": b"nonsense\r\n\r\n",
    "zeros": bytes(64),
    "method": b"EAT / HTTP/1.1\r\n\r\n",
    "header's name": b"GET / HTTP/1.1\r\nbad header: x\r\n\r\n",
    "header's value": b"GET / HTTP/1.1\r\nx: a\x00b\r\n\r\n",
    "header without a colon": b"GET / HTTP/1.1\r\nnothing\r\n\r\n",
    "two framings": head(TEXT, "content-length: 5", "transfer-encoding: chunked"),
    "two lengths": head(TEXT, "content-length: 1", "content-length: 2"),
    "negative length": head(TEXT, "content-length: -1"),
    "length in words": head(TEXT, "content-length: many"),
    "length beyond 64 bits": head(TEXT, "content-length: 99999999999999999999999999"),
    "chunk's length": _CHUNKED + b"zz\r\n",
    "chunk's end": _CHUNKED + b"5\r\nabcdefgh\r\n",
    "chunk beyond 64 bits": _CHUNKED + b"fffffffffffffffff\r\n",
    "connect": b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    "url": b"GET http://[ HTTP/1.1\r\n\r\n",
}

_TOO_LONG = {
    "a URL": (head("/" + "a" * (9 * KIB), method="GET"), 414),
    "a query": (head(TEXT + "?" + "a" * (9 * KIB)), 414),
    "a URL without an end": (b"GET /" + b"a" * MIB, 414),
    "a header": (head(TEXT, "x: " + "a" * (40 * KIB)), 431),
    "a header without an end": (b"GET / HTTP/1.1\r\nx: " + b"a" * MIB, 431),
    "many headers": (head(TEXT, *(f"x-{i}: y" for i in range(5_000))), 431),
    "many empty lines": (b"\r\n" * MIB, 431),
    "a chunk's extension": (_CHUNKED + b"1;" + b"x" * MIB, 431),
    "a trailer": (_CHUNKED + b"1\r\n{\r\n0\r\nx: " + b"y" * MIB, 431),
    "a cookie": (head("/v1/models", "cookie: " + "a=b; " * (10 * KIB), method="GET"), 431),
}

_CUT = {
    "a method": b"PO",
    "a header": _WHOLE[:60],
    "a head": head(TEXT)[:-2],
    "no body": head(TEXT, "content-type: application/json", "content-length: 10"),
    "half a body": _WHOLE[:-5],
    "half a chunk": _CHUNKED + b"1f\r\n{",
    "no last chunk": _CHUNKED + b"1\r\n{\r\n",
    "half a chunk's length": _CHUNKED + b"1",
}

_ROUTES = {
    "root": (head("/", method="POST"), 405),
    "old version": (post("/v0/completions", b"{}"), 404),
    "dots": (head("/../../etc/passwd", method="GET"), 404),
    "percents": (head("/%00%ff%2e%2e/", method="GET"), 404),
    "slash": (head("/v1/models/absent/", method="GET"), 404),
    "a slash more": (post("/v1/completions/", b'{"prompt": "a"}'), 404),
    "two slashes": (head("//health", method="GET"), 404),
    "get": (head(CHAT, method="GET"), 405),
    "put": (head(TEXT, method="PUT"), 405),
    "delete": (head("/v1/models", method="DELETE"), 405),
    "patch": (head("/health", method="PATCH"), 405),
    "tokenize by get": (head("/tokenize", method="GET"), 405),
}

_KINDS = (
    *("text/plain", "text/html", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
    *("application/xml", "application/octet-stream", "x", "application/jsonx", "application/grpc"),
)


def wrong_wires(max_body: int) -> Iterator[Raw]:
    """Every one, for a server that reads bodies of `max_body` bytes."""
    for body in NO_JSON:
        for path in (CHAT, TEXT):
            yield Raw(name=f"{path} {body[:40]!r}", data=post(path, body), status=400)
    for name, data in NO_HTTP.items():
        yield Raw(name=f"no HTTP: {name}", data=data, status=400)
    for name, (data, status) in _TOO_LONG.items():
        yield Raw(name=f"too long: {name}", data=data, status=status)
    for name, data in _CUT.items():
        yield Raw(name=f"cut: {name}", data=data, status=400, half_close=True)
    for name, (data, status) in _ROUTES.items():
        yield Raw(name=f"no route: {name}", data=data, status=status)
    for kind in _KINDS:
        yield Raw(name=f"kind: {kind}", data=post(TEXT, b'{"prompt": "a"}', kind), status=415)
    for coding in ("gzip", "br", "nonsense"):
        data = head(TEXT, f"content-encoding: {coding}", "content-length: 15") + b'{"prompt": "a"}'
        yield Raw(name=f"coding: {coding}", data=data, status=415)
    yield from _too_large(max_body)


def _too_large(max_body: int) -> Iterator[Raw]:
    for extra in ("connection: keep-alive", "connection: close", "expect: 100-continue"):
        large = head(TEXT, "content-type: application/json", extra, f"content-length: {max_body + 1}")
        yield Raw(name=f"too large: {extra}", data=large, status=413)
        yield Raw(name=f"too large, sent: {extra}", data=large + b" " * (max_body + 1), status=413)
    chunk = b"%x\r\n%s\r\n" % (max_body // 4, b" " * (max_body // 4))
    yield Raw(name="too large, in chunks", data=_CHUNKED + chunk * 5, status=413)
