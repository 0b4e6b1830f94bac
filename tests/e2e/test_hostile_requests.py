"""Hundreds of wrong requests against a whole stack, and eight streams on it that must not notice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
import httpx
import pytest

from octavo.client.aio import AsyncClient
from protos import inference_pb2 as pb
from shared import rpc
from tests.e2e.stack import RunningStack, until_at_rest
from tests.hostile import http2
from tests.hostile.bodies import FOR_A_MODEL, wrong_bodies
from tests.hostile.messages import wrong_calls
from tests.hostile.senders import FIELDS, Told, send_body, send_call, send_raw, send_session
from tests.hostile.wires import post, wrong_wires

AT_ONCE = 8
MAX_BODY = 4 << 20  # the router's default
STREAMS = 8
HALF_BODY = post("/v1/completions", b'{"prompt": "a"}')[:-1]
HALF_HEAD = HALF_BODY[:40]
TOKENS = 200

T = TypeVar("T")


def asked(number: int) -> dict[str, Any]:
    """A stream that goes on for a while, drawn from its own seed."""
    return {"max_tokens": TOKENS, "temperature": 1.0, "seed": number, "ignore_eos": True}


async def over_http(stack: RunningStack, number: int) -> str:
    """The text of one stream of server-sent events, which ends as it should."""
    body = {"model": stack.model, "prompt": [5 + number, 6], "stream": True, **asked(number)}
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=90) as http:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    *events, done = lines
    texts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
    assert done == "[DONE]"
    assert json.loads(events[-1])["choices"][0]["finish_reason"] == "length"
    return "".join(texts)


async def over_grpc(stack: RunningStack, number: int) -> str:
    """The text of one gRPC stream."""
    async with AsyncClient(stack.grpc, timeout=90) as client:
        async with await client.complete([5 + number, 6], stream=True, **asked(number)) as stream:
            return "".join([delta.text async for delta in stream])


def one_round(stack: RunningStack) -> list[Awaitable[str]]:
    """Eight streams, half of them on each edge."""
    ways = (over_http, over_grpc)
    return [ways[number % 2](stack, number) for number in range(STREAMS)]


@asynccontextmanager
async def unnoticed(stack: RunningStack, *, noisy: bool = False) -> AsyncIterator[None]:
    """Eight streams run for as long as the block does; all that they say must be what they say when alone.

    `noisy`: gRPC itself logs what it cannot read of a call's head.
    """
    quiet = await asyncio.gather(*one_round(stack))
    assert len(set(quiet)) == STREAMS
    over, said = asyncio.Event(), len(stack.errors)

    async def rounds() -> int:
        count = 0
        while not over.is_set() or not count:
            assert await asyncio.gather(*one_round(stack)) == quiet
            count += 1
        return count

    running = asyncio.create_task(rounds())
    try:
        yield
    finally:
        over.set()
        assert await running >= 1
    assert noisy or [line for line in stack.errors[said:] if "Traceback" in line or "ERROR" in line] == []
    for address in stack.workers:
        load = until_at_rest(address)
        assert load.free_blocks == load.total_blocks


@asynccontextmanager
async def half_sent(address: str, count: int) -> AsyncIterator[None]:
    """So many connections that never finish what they have begun, heads and bodies, for as long as the block or the server lets them."""
    host, _, port = address.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    for number, (_, writer) in enumerate(opened):
        writer.write(HALF_HEAD if number % 2 else HALF_BODY)
    try:
        yield
    finally:
        for _, writer in opened:
            writer.close()


async def each(items: Iterable[T], send: Callable[[T], Awaitable[str | None]]) -> list[str]:
    """Sends all, some at once; gives what `send` found wrong."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> str | None:
        async with room:
            return await send(item)

    found = await asyncio.gather(*(one(item) for item in items))
    return [wrong for wrong in found if wrong]


def not_as(told: Told, status: int, param: str | None) -> bool:
    return told.status != status or set(told.error) != FIELDS or (param is not None and told.error["param"] != param)


async def test_c28_c30_malformed_http_is_4xx_naming_the_parameter_and_running_streams_do_not_notice(
    stack: RunningStack,
) -> None:
    bodies, wires = [*wrong_bodies(), *FOR_A_MODEL], [*wrong_wires(MAX_BODY)]
    assert len(bodies) + len(wires) >= 400

    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=90) as http:

        async def body(case: tuple[str, Any, str | None]) -> str | None:
            path, sent, param = case
            told = await send_body(http, path, sent)
            large = told.status == 413 and param is not None and told.error["param"] == param
            return f"{path} {str(sent)[:80]}: {told}" if not_as(told, 400, param) and not large else None

        async def wire(raw: Any) -> str | None:
            told = await send_raw(stack.http, raw)
            return f"{raw.name}: {told}" if not_as(told, raw.status, None) else None

        async with unnoticed(stack), half_sent(stack.http, 200):
            assert await each(bodies, body) == []
            assert await each(wires, wire) == []
        assert (await http.get("/ready")).status_code == 200


async def test_c28_malformed_grpc_is_invalid_argument_naming_the_field_and_running_streams_do_not_notice(
    stack: RunningStack,
) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    async with rpc.channel(stack.grpc) as channel:

        async def call(case: tuple[str, Any, str]) -> str | None:
            method, message, field = case
            got = await send_call(channel, method, message)
            return f"{method} {str(message)[:80]}: {got}" if got != (invalid, field) else None

        calls = [*wrong_calls()]
        async with unnoticed(stack):
            assert await each(calls, call) == []
            told = await send_session(channel)
    assert len(calls) + len(told) >= 200
    assert [row for row in told if row[1] != row[2] or row[3] != invalid.value[0]] == []


GENERATE = b"/octavo.v1.Inference/Generate"
ONE_TOKEN = pb.GenerateRequest(prompt="a", sampling=pb.Sampling(max_tokens=1)).SerializeToString()
ODD_CALLS = {
    "path that is no text": http2.call(b"/\xff\xfe/\x00"),
    "no path": http2.call(b""),
    "thousands of years": http2.call(GENERATE, ONE_TOKEN, [(b"grpc-timeout", b"99999999H")]),
    "thirty years": http2.call(GENERATE, ONE_TOKEN, [(b"grpc-timeout", b"99999999S")]),
    "no time": http2.call(GENERATE, ONE_TOKEN, [(b"grpc-timeout", b"0n")]),
    "time that is none": http2.call(GENERATE, ONE_TOKEN, [(b"grpc-timeout", b"-1S")]),
    "metadata that is no text": http2.call(GENERATE, ONE_TOKEN, [(b"authorization", b"\xff"), (b"x-bin", b"%")]),
    "lies about compression": http2.call(GENERATE, b"\x01" + ONE_TOKEN, [(b"grpc-encoding", b"gzip")]),
}


async def test_calls_that_no_grpc_library_would_send_are_answered_and_running_streams_do_not_notice(
    stack: RunningStack,
) -> None:
    told = (http2.HEADERS, http2.RESET, http2.GOAWAY)
    async with unnoticed(stack, noisy=True):
        answers = {name: await http2.first_frame_of(told, stack.grpc, sent) for name, sent in ODD_CALLS.items()}
    assert answers == dict.fromkeys(ODD_CALLS, http2.HEADERS)


OUT_OF_VOCABULARY = [case for case in FOR_A_MODEL if case[2] in ("stop_token_ids", "logit_bias", "allowed_token_ids")]


@pytest.mark.parametrize(("path", "body", "param"), OUT_OF_VOCABULARY, ids=str)
async def test_c26_token_ids_beyond_the_vocabulary_are_refused_and_neighbours_keep_their_logits(
    stack: RunningStack, path: str, body: dict[str, Any], param: str
) -> None:
    neighbour = {"model": stack.model, "prompt": [9, 9], "max_tokens": 24, "temperature": 0, "logprobs": 5}
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=90) as http:
        before = (await http.post("/v1/completions", json=neighbour)).json()["choices"]
        answers = await asyncio.gather(
            http.post("/v1/completions", json=neighbour), *(send_body(http, path, body) for _ in range(4))
        )
    beside, *refused = answers
    assert beside.json()["choices"] == before
    assert [(told.status, told.error["param"]) for told in refused] == [(400, param)] * 4
