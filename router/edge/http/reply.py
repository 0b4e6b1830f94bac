"""Answers of generations. The work starts when the answer is sent, and stops when the client leaves, in any phase."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pydantic_core
from fastapi import Response
from starlette.types import Receive, Scope, Send

from router.edge.collect import Collector
from router.edge.gate import Gate
from router.edge.http import answers, sse
from router.edge.http.batch import Batch, Flush
from router.edge.http.errors import renaming
from router.edge.http.presence import until_gone
from router.request import GenerateRequest, Piece, Usage


class Shape(Protocol):
    """How one API tells choices. Made for one call: it may remember what it told."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def select(self, choices: Sequence[Piece]) -> Sequence[Piece]:
        """What is told of all that was generated, in order."""

    def above(self, choices: Sequence[Piece]) -> Mapping[str, Any]:
        """What a whole answer tells beside its choices."""

    def whole(self, choice: Piece) -> Mapping[str, Any]:
        """A whole choice."""

    def chunk(self, piece: Piece) -> Mapping[str, Any] | None:
        """A piece of a choice; None where it tells nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One HTTP call, translated. `names`: what its API calls parameters that the router's inside names otherwise."""

    requests: Sequence[GenerateRequest]
    shape: Shape
    stream: bool
    include_usage: bool
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`fingerprint` names the build in every answer; after `keepalive` seconds of silence a stream gets a comment."""

    fingerprint: str
    keepalive: float = 15.0


def usage_of(usage: Usage) -> answers.Usage:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class Reply(Response):
    """Sends a call's answer, whole or as events.

    Errors before the first byte are raised, for the application to tell with their status.
    """

    def __init__(self, gate: Gate, call: Call, settings: Settings):
        super().__init__()
        self._gate = gate
        self._call = call
        self._settings = settings
        self._created = int(time.time())
        self._head, self._head_resumed = b"", ""
        self._behind = b'],"usage":null}\n\n' if call.include_usage else b"]}\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(send) if self._call.stream else self._whole(send)
        await until_gone(receive, work)

    def _envelope(self, batch: Batch, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        resumed = {"octavo_resumed": batch.resumed} if batch.resumed else {}
        return resumed | {
            "id": f"{self._call.shape.id_prefix}{batch.first.id}",
            "object": kind,
            "created": self._created,
            "model": batch.first.model,
            "system_fingerprint": self._settings.fingerprint,
            "choices": choices,
        }

    async def _whole(self, send: Send) -> None:
        with renaming(self._call.names):
            async with Batch(self._gate, self._call.requests) as batch:
                whole = self._call.shape.select(await self._collect(batch))
                body = await _told(whole, partial(self._answer, batch, whole))
                headers = _rate_headers(batch)
        await _send_whole(send, body, headers)

    def _answer(self, batch: Batch, whole: Sequence[Piece]) -> bytes:
        """Choice by choice: nothing else runs while one is written."""
        shape = self._call.shape
        answer = self._envelope(batch, shape.whole_object, [])
        del answer["choices"]
        rest = pydantic_core.to_json(answer | {"usage": usage_of(batch.usage), **shape.above(whole)})
        choices = b",".join(pydantic_core.to_json(shape.whole(choice)) for choice in whole)
        return rest[:-1] + b',"choices":[' + choices + b"]}"

    async def _collect(self, batch: Batch) -> list[Piece]:
        collector = Collector()
        whole: list[Piece] = []
        async with aclosing(batch.flushes()) as flushes:
            async for flush in flushes:
                whole += [choice for piece in flush if (choice := collector.add(piece))]
        return sorted(whole, key=lambda choice: choice.index)

    async def _stream(self, send: Send) -> None:
        """The status waits for the first flush (or the first silence), so that a refusal still has its own."""
        events = sse.Events(send)
        try:
            with renaming(self._call.names):
                async with Batch(self._gate, self._call.requests) as batch:
                    async with events.kept_alive(self._settings.keepalive), aclosing(batch.flushes()) as flushes:
                        async for flush in flushes:
                            if not events.started:
                                events.headers = _rate_headers(batch)
                            await events.send(await _told(flush, partial(self._flush, batch, flush)))
                    tail = self._usage_event(batch) + sse.DONE
        except Exception as error:
            if not events.started:
                raise
            tail = sse.error_event(error)
        await events.end(tail)

    def _flush(self, batch: Batch, flush: Flush) -> bytes:
        return b"".join([self._chunk(batch, piece) for piece in flush])

    def _chunk(self, batch: Batch, piece: Piece) -> bytes:
        choice = self._call.shape.chunk(piece)
        return b"" if choice is None else b"%b%b%b" % (self._before(batch), sse.json_line(choice), self._behind)

    def _before(self, batch: Batch) -> bytes:
        """Of each chunk, what stands before its choice: the same until the stream goes on in another way."""
        resumed = batch.resumed
        if not self._head or resumed != self._head_resumed:
            rest = self._envelope(batch, self._call.shape.chunk_object, [])
            del rest["choices"]
            self._head = b"data: " + sse.json_line(rest)[:-1] + b',"choices":['
            self._head_resumed = resumed
        return self._head

    def _usage_event(self, batch: Batch) -> bytes:
        if not self._call.include_usage:
            return b""
        chunk = self._envelope(batch, self._call.shape.chunk_object, [])
        return sse.event({**chunk, "usage": usage_of(batch.usage)})


async def _told(pieces: Sequence[Piece], tell: Callable[[], bytes]) -> bytes:
    """What `tell` makes of `pieces`: in a thread where they hold a prompt's rows, which may take longer than the event loop may wait."""
    for piece in pieces:
        if piece.prompt:
            return await asyncio.to_thread(tell)
    return tell()


def _rate_headers(batch: Batch) -> list[tuple[bytes, bytes]]:
    rates = batch.rates
    return [] if rates is None else [(name.encode(), value.encode()) for name, value in rates.headers().items()]


async def _send_whole(send: Send, body: bytes, more: Sequence[tuple[bytes, bytes]]) -> None:
    headers = [
        *more,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
