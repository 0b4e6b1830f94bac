"""A reader of streams over gRPC, of one Session or of many calls of Generate: it counts tokens by their marks in the messages' bytes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from octavo.bench.router.tokenizer import MARK
from protos import inference_pb2 as pb
from shared import rpc

_SESSION = "/octavo.v1.Inference/Session"
_GENERATE = "/octavo.v1.Inference/Generate"


@dataclass(kw_only=True, slots=True)
class Taken:
    """What came so far."""

    tokens: int = 0
    messages: int = 0
    bytes: int = 0


def _request(number: int, max_tokens: int) -> pb.GenerateRequest:
    sampling = pb.Sampling(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(
        request_id=f"r{number}", model="simulated", prompt=f"stream {number} of many", sampling=sampling
    )


def _raw(data: bytes) -> bytes:
    return data


async def _count(call: Any, taken: Taken) -> None:
    async for data in call:
        taken.messages += 1
        taken.bytes += len(data)
        taken.tokens += data.count(MARK)


def _session(channel: grpc.aio.Channel, streams: int, max_tokens: int) -> Any:
    async def starts() -> AsyncIterator[pb.SessionRequest]:
        for number in range(streams):
            yield pb.SessionRequest(start=_request(number, max_tokens))
        await asyncio.Event().wait()

    open_session = channel.stream_stream(
        _SESSION, request_serializer=pb.SessionRequest.SerializeToString, response_deserializer=_raw
    )
    return open_session(starts())


def _calls(channel: grpc.aio.Channel, streams: int, max_tokens: int) -> list[Any]:
    generate = channel.unary_stream(
        _GENERATE, request_serializer=pb.GenerateRequest.SerializeToString, response_deserializer=_raw
    )
    return [generate(_request(number, max_tokens)) for number in range(streams)]


async def rates(
    address: str, *, streams: int, session: bool, warm_s: float, seconds: float, max_tokens: int = 1 << 19
) -> dict[str, float]:
    """Tokens and messages a second over `seconds`, after `warm_s`."""
    taken = Taken()
    async with rpc.channel(address) as channel:
        calls = [_session(channel, streams, max_tokens)] if session else _calls(channel, streams, max_tokens)
        tasks = [asyncio.create_task(_count(call, taken)) for call in calls]
        await asyncio.sleep(warm_s)
        began, tokens, messages = time.perf_counter(), taken.tokens, taken.messages
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        failed = next((task.exception() for task in tasks if task.done()), None)
        tokens, messages = taken.tokens - tokens, taken.messages - messages
        for call in calls:
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
    if failed is not None:
        raise failed
    return {"tokens_per_s": tokens / took, "messages_per_s": messages / took, "seconds": took}
