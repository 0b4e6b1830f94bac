"""Connections that are slow, huge, broken or too many: each is answered in OpenAI's shape or closed, in bounded time."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.edge.http.connection import Limits
from tests.fakes.edges import MAX_BODY, HttpEdge, http_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import FakeService

BOUND = 20.0
QUICK = Limits(
    head_seconds=0.2,
    body_seconds=0.3,
    write_seconds=0.3,
    idle_seconds=0.2,
    head_bytes=4_096,
    url_bytes=1_024,
    connections=4,
)
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"prompt": "a", "max_tokens": 1}'
WHOLE = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


@pytest.fixture
async def quick() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService(), limits=QUICK) as running:
        yield running


@asynccontextmanager
async def connected(edge: HttpEdge) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = edge.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(BOUND):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """One answer with a length: status, headers, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


async def refused(edge: HttpEdge, data: bytes, *, half_close: bool = False) -> tuple[int, dict[str, Any]]:
    """Status and error of what ends the connection."""
    async with connected(edge) as (reader, writer):
        writer.write(data)
        if half_close:
            writer.write_eof()
        status, headers, body = await answer(reader)
        assert headers["content-type"] == "application/json"
        assert headers["connection"] == "close"
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert await reader.read() == b""
        return status, body["error"]


SLOW = [b"G", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\nx-", WHOLE[:-5], POST]


@pytest.mark.parametrize("data", SLOW)
async def test_a_request_that_is_half_sent_is_408_in_time(quick: HttpEdge, data: bytes) -> None:
    status, error = await refused(quick, data)
    assert (status, error["code"]) == (408, "request_timeout")
    assert quick.service.requests == []


async def test_dribbling_bytes_does_not_move_the_deadline(quick: HttpEdge) -> None:
    async def dribble(writer: asyncio.StreamWriter) -> None:
        for i in range(10_000):
            writer.write(b"x-%d: y\r\n" % i if i % 50 == 0 else b"")
            await asyncio.sleep(0.005)

    async with connected(quick) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\n")
        dribbling = asyncio.create_task(dribble(writer))
        status, _, _ = await answer(reader)
        dribbling.cancel()
    assert status == 408


async def test_a_silent_connection_is_closed(quick: HttpEdge) -> None:
    async with connected(quick) as (reader, _):
        assert await reader.read() == b""


async def test_a_kept_connection_whose_next_request_is_half_sent_is_408(quick: HttpEdge) -> None:
    async with connected(quick) as (reader, writer):
        for _ in range(3):
            writer.write(WHOLE)
            assert (await answer(reader))[0] == 200
        writer.write(WHOLE[:20])
        assert (await answer(reader))[0] == 408
        assert await reader.read() == b""


@pytest.mark.parametrize(("head", "idle", "kept"), [(0.1, 60.0, True), (60.0, 0.1, False)])
async def test_a_kept_connection_has_its_own_time(head: float, idle: float, kept: bool) -> None:
    async with http_edge(FakeService(), limits=Limits(head_seconds=head, idle_seconds=idle)) as edge:
        async with connected(edge) as (reader, writer):
            writer.write(WHOLE)
            assert (await answer(reader))[0] == 200
            if kept:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.5)
                writer.write(WHOLE)
                assert (await answer(reader))[0] == 200
            else:
                assert await reader.read() == b""


async def test_a_body_answered_early_and_never_finished_is_closed(quick: HttpEdge) -> None:
    async with connected(quick) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc")
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""


async def test_stray_line_ends_between_requests_do_not_keep_a_connection(quick: HttpEdge) -> None:
    async with connected(quick) as (reader, writer):
        writer.write(WHOLE)
        assert (await answer(reader))[0] == 200
        writer.write(b"\r\n")
        assert b"408" in await reader.read()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /" + b"a" * 2_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414, "request_uri_too_long"),
        (b"GET /" + b"a" * 9_000, 414, "request_uri_too_long"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 9_000, 431, "request_header_fields_too_large"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 5_000 + b"\r\n\r\n", 431, "request_header_fields_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_000 + b"\r\n", 431, "request_header_fields_too_large"),
        (b"\r\n" * 5_000, 431, "request_header_fields_too_large"),
        (POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 900_000, 431, "request_header_fields_too_large"),
        (
            POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: " + b"y" * 900_000,
            431,
            "request_header_fields_too_large",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/7.0\r\n\r\n", 400, "bad_request"),
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nbad header: x\r\n\r\n", 400, "bad_request"),
        (POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400, "bad_request"),
        (POST + b"content-length: -1\r\n\r\n", 400, "bad_request"),
        (POST + b"content-length: 99999999999999999999999999\r\n\r\n", 400, "bad_request"),
        (POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "bad_request"),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "bad_request"),
        (POST + b"transfer-encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n", 400, "bad_request"),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (POST + b"host: y\r\ncontent-length: 1\r\n\r\n1", 400, "bad_request"),
        (POST.replace(b"host: ", b"x-host: ") + b"content-length: 1\r\n\r\n1", 400, "bad_request"),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n", 400, "bad_request"),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, bytes) else str(value),
)
async def test_what_no_application_should_see_is_refused(quick: HttpEdge, data: bytes, status: int, code: str) -> None:
    got, error = await refused(quick, data)
    assert (got, error["code"]) == (status, code)
    assert quick.service.requests == []


@pytest.mark.parametrize("cut", [5, len(POST) + 25, len(WHOLE) - 3])
async def test_a_request_that_ends_in_the_middle_is_400(edge: HttpEdge, cut: int) -> None:
    status, error = await refused(edge, WHOLE[:cut], half_close=True)
    assert (status, error["code"]) == (400, "bad_request")


async def test_a_truncated_chunked_body_is_400(edge: HttpEdge) -> None:
    data = POST + b"transfer-encoding: chunked\r\n\r\n1f\r\n" + BODY[:10]
    status, _ = await refused(edge, data, half_close=True)
    assert status == 400


@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n", b"expect: 100-continue\r\n"])
async def test_413_arrives_though_the_body_is_still_being_sent(edge: HttpEdge, extra: bytes) -> None:
    size = 64 * MAX_BODY
    async with connected(edge) as (reader, writer):
        writer.write(POST + extra + b"content-length: %d\r\n\r\n" % size)
        for _ in range(64):
            writer.write(b"x" * MAX_BODY)
            await writer.drain()
        status, headers, body = await answer(reader)
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert headers["connection"] == "close"
    assert str(MAX_BODY) in body["error"]["message"]


async def test_a_websocket_is_refused_as_any_get_without_a_word_in_the_log(
    edge: HttpEdge, caplog: pytest.LogCaptureFixture
) -> None:
    ask = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"
    with caplog.at_level(logging.WARNING):
        async with connected(edge) as (reader, writer):
            for _ in range(2):
                writer.write(ask)
                assert (await answer(reader))[0] == 200
    assert caplog.records == []


async def test_a_body_beside_an_offer_of_http2_is_answered(edge: HttpEdge) -> None:
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
    async with connected(edge) as (reader, writer):
        for _ in range(2):
            writer.write(POST + offer + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
            assert (await answer(reader))[0] == 200


async def test_a_pipelined_request_ends_the_connection_after_the_answer_before_it(edge: HttpEdge) -> None:
    async with connected(edge) as (reader, writer):
        writer.write(WHOLE * 50)
        status, headers, _ = await answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
    assert len(edge.service.requests) == 1


async def test_garbage_after_a_request_does_not_spoil_its_answer(edge: HttpEdge) -> None:
    async with connected(edge) as (reader, writer):
        writer.write(WHOLE + b"\x00garbage\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert await reader.read() == b""


async def test_newcomers_push_out_who_waits_longest_and_never_who_is_answered() -> None:
    service = FakeService(hold_at=1)
    async with http_edge(service, limits=Limits(connections=4)) as edge:
        async with connected(edge) as (reader, writer):
            writer.write(POST + b'content-length: 31\r\n\r\n{"prompt": "a", "stream": true}')
            await until(lambda: service.generations)
            idle = [await asyncio.open_connection(*edge.url.removeprefix("http://").split(":")) for _ in range(40)]
            assert (await edge.http.get("/health")).status_code == 200
            service.generations[0].release.set()
            assert (await reader.readuntil(b"\r\n0\r\n\r\n")).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            ends = [await asyncio.wait_for(early.read(), BOUND) for early, _ in idle[:30]]
            assert ends == [b""] * 30
        for _, writer in idle:
            writer.close()


async def test_hundreds_of_half_sent_requests_end_in_time_and_others_are_served_meanwhile() -> None:
    limits = Limits(head_seconds=1.0, body_seconds=1.0)
    async with http_edge(FakeService(), limits=limits) as edge:
        host, _, port = edge.url.removeprefix("http://").rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
        for number, (_, writer) in enumerate(opened):
            writer.write(WHOLE[: 20 if number % 2 else -5])
        assert (await edge.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        async with asyncio.timeout(BOUND):
            ends = [await reader.read() for reader, _ in opened]
        assert all(end.startswith(b"HTTP/1.1 408 ") for end in ends)
        for _, writer in opened:
            writer.close()


async def test_where_all_are_answered_a_newcomer_is_503() -> None:
    service = FakeService(hold_at=1)
    async with http_edge(service, limits=Limits(connections=2)) as edge:
        running = [asyncio.create_task(edge.http.post("/v1/completions", json={"prompt": "a"})) for _ in range(2)]
        await until(lambda: len(service.generations) == 2)
        async with connected(edge) as (reader, _):
            status, headers, body = await answer(reader)
        assert (status, headers["retry-after"], body["error"]["type"]) == (503, "1", "server_error")
        for generation in service.generations:
            generation.release.set()
        assert [(await task).status_code for task in running] == [200, 200]


async def test_a_reader_that_does_not_read_is_dropped(quick: HttpEdge) -> None:
    quick.service.script = lambda request: [(piece(i),) for i in range(20_000)]
    async with connected(quick) as (_, writer):
        writer.write(POST + b'content-length: 31\r\n\r\n{"prompt": "a", "stream": true}')
        await until(lambda: quick.service.generations and quick.service.generations[0].closed.is_set())


def piece(index: int) -> Any:
    from router.request import Ended, Piece

    ended = Ended(reason="stop") if index == 19_999 else None
    return Piece(index=0, text="x" * 4_000, tokens=(1,), ended=ended)
