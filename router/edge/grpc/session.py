"""Many requests over one stream. A request's fault ends that request alone; the session ends with its stream."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from protos import inference_pb2 as pb
from router.edge.gate import Gate
from router.edge.grpc.answer import Answer, Origin, answer_to, cancelled_unopened
from router.edge.grpc.outbox import Outbox, Write
from shared.errors import (
    AlreadyExists,
    InvalidRequest,
    OctavoError,
    Overloaded,
    Unavailable,
    from_exception,
)
from shared.limits import MAX_CHOICES
from shared.wire.inference import error_to_pb

MAX_IN_FLIGHT = 1_024  # requests a session

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class _Run:
    request: pb.GenerateRequest
    answer: Answer | None = None
    task: "asyncio.Task[pb.GenerateResponse]" = field(init=False)

    def opened(self, answer: Answer) -> None:
        self.answer = answer


def _failed(request_id: str, error: OctavoError) -> pb.SessionEvent:
    return pb.SessionEvent(request_id=request_id, error=error_to_pb(error))


def _cancelled(run: _Run) -> pb.GenerateResponse:
    if run.answer is not None:
        return run.answer.cancelled()
    wanted = run.request.n if run.request.HasField("n") else 1
    return cancelled_unopened(run.request, min(wanted, MAX_CHOICES))


def _ending(run: _Run) -> pb.SessionEvent:
    """The one event that ends a request, from how its task ended."""
    request_id, task = run.request.request_id, run.task
    if task.cancelled():
        return pb.SessionEvent(request_id=request_id, response=_cancelled(run), done=True)
    error = task.exception()
    if error is None:
        return pb.SessionEvent(request_id=request_id, response=task.result(), done=True)
    if not isinstance(error, OctavoError):
        _LOG.error("request %s failed", request_id, exc_info=error)
    return _failed(request_id, from_exception(error))


class Session:
    """Serves one stream."""

    def __init__(self, gate: Gate, origin: Origin):
        self._gate = gate
        self._origin = origin
        self._outbox = Outbox()
        self._running: dict[str, _Run] = {}
        self._settled = asyncio.Event()
        self._settled.set()

    async def run(self, frames: AsyncIterator[pb.SessionRequest], write: Write) -> None:
        """Returns once the caller has half-closed and every request has ended.

        Raises Unavailable where every request has ended because the gate was shut.
        """
        writer = asyncio.create_task(self._outbox.drain(write))
        reader = asyncio.create_task(self._read(frames))
        until = asyncio.create_task(self._finish(reader))
        try:
            await asyncio.wait({writer, until}, return_when=asyncio.FIRST_COMPLETED)
            if until.done():
                until.result()
                self._outbox.close()
            await writer
            if not reader.done():
                raise Unavailable("this server is shutting down; ask another", retry_after=1.0)
        finally:
            await self._abandon(reader, writer, until)

    async def _finish(self, reader: "asyncio.Task[None]") -> None:
        shut = asyncio.create_task(self._gate.shut.wait())
        try:
            await asyncio.wait({reader, shut}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
            await self._settled.wait()
        finally:
            shut.cancel()

    async def _abandon(self, *tasks: "asyncio.Task[None]") -> None:
        left = [*tasks, *(run.task for run in self._running.values())]
        for task in left:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*left, return_exceptions=True)

    async def _read(self, frames: AsyncIterator[pb.SessionRequest]) -> None:
        async for frame in frames:
            match frame.WhichOneof("frame"):
                case "start":
                    await self._start(frame.start)
                case "cancel":
                    self._cancel(frame.cancel)
                case _:
                    error = InvalidRequest("one of start and cancel must be set", param="frame")
                    await self._outbox.put(_failed("", error))

    def _refusal(self, request_id: str) -> OctavoError | None:
        if not request_id:
            return InvalidRequest("request_id must be set in a session", param="request_id")
        if request_id in self._running:
            return AlreadyExists("request_id is in flight on this session", param="request_id")
        if len(self._running) >= MAX_IN_FLIGHT:
            return Overloaded(f"this session has {MAX_IN_FLIGHT} requests in flight")
        return None

    async def _start(self, request: pb.GenerateRequest) -> None:
        refusal = self._refusal(request.request_id)
        if refusal is not None:
            await self._outbox.put(_failed(request.request_id, refusal))
            return
        run = _Run(request=request)
        self._running[request.request_id] = run
        self._settled.clear()
        run.task = asyncio.create_task(self._serve(run))
        run.task.add_done_callback(partial(self._end, run))

    def _cancel(self, request_id: str) -> None:
        run = self._running.get(request_id)
        if run is not None:
            run.task.cancel()

    def _end(self, run: _Run, _: "asyncio.Task[pb.GenerateResponse]") -> None:
        self._outbox.put_last(_ending(run))
        del self._running[run.request.request_id]
        if not self._running:
            self._settled.set()

    async def _serve(self, run: _Run) -> pb.GenerateResponse:
        async def send(response: pb.GenerateResponse) -> None:
            await self._outbox.put(pb.SessionEvent(request_id=run.request.request_id, response=response))

        return await answer_to(self._gate, run.request, self._origin, send, run.opened)
