"""A client that leaves ends its work at once, whatever phase it is in and whether it streams or not."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.edges import HttpEdge, http_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import FakeService

BOUND = 10  # seconds


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


async def send(edge: HttpEdge, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection with one completion request on its way."""
    host, port = edge.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + content)
    await writer.drain()
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def settled(edge: HttpEdge) -> None:
    async with asyncio.timeout(BOUND):
        await edge.gate.idle()
    assert edge.gate.open_generations == 0


async def generation_of(edge: HttpEdge, number: int = 0):
    await until(lambda: len(edge.service.generations) > number)
    return edge.service.generations[number]


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_queued_cancels_the_admission(edge: HttpEdge, stream: bool) -> None:
    edge.service.admit.clear()
    _, writer = await send(edge, {"prompt": "a", "stream": stream})
    async with asyncio.timeout(BOUND):
        await edge.service.entered.wait()
        await leave(writer)
        await edge.service.abandoned.wait()
    await settled(edge)
    assert edge.service.generations == []


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token_closes_the_generation(edge: HttpEdge, stream: bool) -> None:
    edge.service.hold_at = 0
    _, writer = await send(edge, {"prompt": "a", "stream": stream})
    generation = await generation_of(edge)
    await leave(writer)
    async with asyncio.timeout(BOUND):
        await generation.closed.wait()
    await settled(edge)
    assert not generation.finished


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_in_mid_answer_closes_the_generation(edge: HttpEdge, stream: bool) -> None:
    edge.service.hold_at = 3
    reader, writer = await send(edge, {"prompt": "a", "stream": stream})
    generation = await generation_of(edge)
    async with asyncio.timeout(BOUND):
        if stream:
            await reader.readuntil(b" a")
        await leave(writer)
        await generation.closed.wait()
    await settled(edge)
    assert not generation.finished


async def test_leaving_closes_every_generation_of_a_batch(edge: HttpEdge) -> None:
    edge.service.hold_at = 2
    _, writer = await send(edge, {"prompt": ["a", "b", "c"], "n": 2})
    generations = [await generation_of(edge, number) for number in range(3)]
    await leave(writer)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(generation.closed.wait() for generation in generations))
    await settled(edge)


async def test_leaving_with_half_a_body_reaches_no_service(edge: HttpEdge) -> None:
    host, port = edge.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    await writer.drain()
    await leave(writer)
    assert (await edge.http.get("/health")).status_code == 200
    assert edge.service.requests == []


async def test_a_reset_connection_counts_as_leaving(edge: HttpEdge) -> None:
    edge.service.hold_at = 1
    _, writer = await send(edge, {"prompt": "a", "stream": True})
    generation = await generation_of(edge)
    writer.transport.abort()
    async with asyncio.timeout(BOUND):
        await generation.closed.wait()
    await settled(edge)


async def test_one_client_leaving_leaves_the_others_alone(edge: HttpEdge) -> None:
    edge.service.hold_at = 4
    _, leaver = await send(edge, {"prompt": "a", "stream": True})
    await generation_of(edge, 0)
    stayer = asyncio.create_task(edge.http.post("/v1/completions", json={"prompt": "b"}))
    kept = await generation_of(edge, 1)
    await leave(leaver)
    async with asyncio.timeout(BOUND):
        await edge.service.generations[0].closed.wait()
    assert not kept.closed.is_set()
    kept.release.set()
    assert (await stayer).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_answer_closes_its_generation_and_keeps_the_connection(edge: HttpEdge, stream: bool) -> None:
    for number in range(3):
        answer = await edge.http.post("/v1/completions", json={"prompt": "a", "stream": stream})
        assert answer.status_code == 200
        assert answer.headers.get("connection") != "close"
        assert edge.service.generations[number].closed.is_set()
    await settled(edge)
