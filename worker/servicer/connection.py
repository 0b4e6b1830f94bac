"""One router's call, from its Hello to its end. Whatever ends it, everything of it ends in the engine at once."""

import asyncio
import logging
from typing import Any

import grpc.aio

from protos import worker_pb2 as pb
from shared.errors import DeadlineExceeded, InvalidRequest, OctavoError
from shared.wire import worker as wire
from worker.servicer.hub import Hub
from worker.servicer.stream import RouterStream

_LOG = logging.getLogger("octavo.worker")

Context = grpc.aio.ServicerContext[pb.Up, pb.Down]


class _Over(Exception):
    """The stream ends well."""


async def converse(hub: Hub, context: Context) -> OctavoError | None:
    """Returns why the worker ended the call; None where it ended well.

    A status may not be sent while a frame is being written: gRPC refuses. So the writer is never cancelled while the call lives; behind
    a router that does not read it stays for as long as that does, when everything else of the stream is long gone.
    """
    hello = await _hello(hub, context)
    stream = hub.open(hello)
    writer = asyncio.create_task(_write(stream, context))
    try:
        error = await _tended(hub, stream, writer, context)
        await asyncio.wait([writer])
        return error
    finally:
        writer.cancel()


async def _tended(hub: Hub, stream: RouterStream, writer: "asyncio.Task[None]", context: Context) -> OctavoError | None:
    """From the open stream to its end, with everything that it had."""
    why = "cancelled"
    try:
        error = await _run(stream, writer, hub.settings.tick, context)
        why = "ended" if error is None else str(error)
        return error
    finally:
        stream.outbound.abandon()
        hub.close(stream, why)


async def _hello(hub: Hub, context: Context) -> pb.Hello:
    try:
        async with asyncio.timeout(hub.settings.hello_timeout):
            frame: Any = await context.read()
    except TimeoutError:
        raise DeadlineExceeded(f"no Hello within {hub.settings.hello_timeout:g} s") from None
    if frame is grpc.aio.EOF or not frame.HasField("hello"):
        raise InvalidRequest("the first frame must be Hello")
    if frame.hello.protocol != wire.PROTOCOL:
        raise InvalidRequest(f"protocol {frame.hello.protocol}: this worker speaks {wire.PROTOCOL}", param="protocol")
    hello: pb.Hello = frame.hello
    return hello


async def _run(stream: RouterStream, writer: "asyncio.Task[None]", tick: float, context: Context) -> OctavoError | None:
    """The first end of any of the three that make a stream is its end."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_read(stream, context))
            group.create_task(_follow(writer))
            group.create_task(_watch(stream, tick))
    except BaseExceptionGroup as group_of_ends:
        end = _first(group_of_ends)
        if isinstance(end, OctavoError):
            return end
        if not isinstance(end, _Over):
            raise end from None
    return None


def _first(error: BaseException) -> BaseException:
    """The first that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _read(stream: RouterStream, context: Context) -> None:
    while True:
        frame: Any = await context.read()
        if frame is grpc.aio.EOF:
            raise _Over
        stream.handle(frame)


async def _write(stream: RouterStream, context: Context) -> None:
    while (frame := await stream.outbound.get()) is not None:
        await context.write(frame)


async def _follow(writer: "asyncio.Task[None]") -> None:
    await asyncio.shield(writer)
    raise _Over


async def _watch(stream: RouterStream, tick: float) -> None:
    while not stream.over.done():
        await asyncio.wait([stream.over], timeout=tick)
        stream.look()
    error = stream.over.result()
    if error is not None:
        raise error
    stream.outbound.close()
