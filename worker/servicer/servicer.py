"""The Worker service. Translates and hands over; what is not loaded yet answers UNAVAILABLE."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc as pb_grpc
from shared import rpc
from shared.errors import Internal, InvalidRequest, OctavoError, Unavailable
from shared.tokenizer import TokenizerBundle
from shared.wire import worker as wire
from shared.wire.adapters import adapter_info_to_pb
from worker.adapters.library import Library
from worker.servicer.connection import converse
from worker.servicer.hub import Hub

_LOG = logging.getLogger("octavo.worker")

PIECE_BYTES = 60 << 10

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What a worker has once it is ready. `drain_seconds` is the deadline of a Drain that names none."""

    hub: Hub
    tokenizer: TokenizerBundle
    drain_seconds: float


class WorkerServicer(pb_grpc.WorkerServicer):
    """`loaded` is None until the model is there."""

    def __init__(self) -> None:
        self.loaded: Loaded | None = None
        self._drains: set[asyncio.Task[int]] = set()

    def serving(self) -> bool:
        """Whether new work is taken and gets done."""
        return self.loaded is not None and self.loaded.hub.serving()

    async def _need(self, context: _Context) -> Loaded:
        if self.loaded is None:
            await rpc.abort(context, Unavailable("the model is still loading"))
        return self.loaded

    async def Serve(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.Up], context: _Context
    ) -> None:
        """A router's stream. A coroutine that writes, not a generator: that would hear of a cancellation only when it is collected."""
        hub = (await self._need(context)).hub
        try:
            error = await converse(hub, context)
        except OctavoError as refused:
            error = refused
        except Exception:  # noqa: BLE001 - a fault of ours ends this stream alone
            _LOG.exception("a stream broke")
            error = Internal("internal error")
        if error is not None:
            await rpc.abort(context, error)

    async def GetInfo(self, request: pb.GetInfoRequest, context: _Context) -> pb.WorkerInfo:
        """What this worker is."""
        return wire.info_to_pb((await self._need(context)).hub.info)

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: _Context
    ) -> AsyncIterator[pb.TokenizerPiece]:
        """The tokenizer's files, in pieces of at most PIECE_BYTES."""
        bundle = (await self._need(context)).tokenizer
        digest = bundle.digest
        for name, data in bundle.files.items():
            for start in range(0, len(data) or 1, PIECE_BYTES):
                yield pb.TokenizerPiece(digest=digest, name=name, data=data[start : start + PIECE_BYTES])
                digest = ""

    async def Drain(self, request: pb.DrainRequest, context: _Context) -> pb.DrainResponse:
        """Answers when nothing runs any more, or at the deadline. Whoever leaves before changes nothing of it."""
        loaded = await self._need(context)
        seconds = request.deadline_ms / 1000 if request.HasField("deadline_ms") else loaded.drain_seconds
        _LOG.info("told to drain, within %g s", seconds)
        drain = asyncio.create_task(loaded.hub.drain(seconds), name="drain")
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        return pb.DrainResponse(unfinished=await asyncio.shield(drain))

    async def FlushCache(self, request: pb.FlushCacheRequest, context: _Context) -> pb.FlushCacheResponse:
        """Forgets what nothing uses."""
        hub = (await self._need(context)).hub
        try:
            return pb.FlushCacheResponse(blocks=await hub.engine.flush_cache())
        except RuntimeError as error:
            await rpc.abort(context, Unavailable(str(error)))

    async def _adapters(self, context: _Context) -> Library:
        adapters = (await self._need(context)).hub.adapters
        if adapters is None:
            await rpc.abort(context, InvalidRequest("this worker serves no adapters"))
        return adapters.library

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: _Context) -> pb.AdapterInfo:
        """Answers when the adapter has been read and checked."""
        library = await self._adapters(context)
        try:
            info = await library.load(
                request.name,
                request.source,
                replace=request.replace,
                pin=request.pin,
                digest=request.digest,
                stage=request.stage,
            )
        except OctavoError as error:
            await rpc.abort(context, error)
        return adapter_info_to_pb(info)

    async def UnloadAdapter(self, request: pb.UnloadAdapterRequest, context: _Context) -> pb.UnloadAdapterResponse:
        """Answers when the name is gone."""
        library = await self._adapters(context)
        try:
            await library.unload(request.name)
        except OctavoError as error:
            await rpc.abort(context, error)
        return pb.UnloadAdapterResponse()

    async def PinAdapter(self, request: pb.PinAdapterRequest, context: _Context) -> pb.AdapterInfo:
        """Answers when the adapter is in host memory, where it is to be pinned."""
        library = await self._adapters(context)
        try:
            info = await library.pin(request.name, request.pinned)
        except OctavoError as error:
            await rpc.abort(context, error)
        return adapter_info_to_pb(info)
