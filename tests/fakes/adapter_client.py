"""A router and an operator of a worker that serves adapters: requests that are checked, and loads at random beside them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc as pb_grpc
from shared import rpc
from shared.types import Finished, FinishReason
from shared.wire.worker import PROTOCOL
from tests.fakes.engine import PlayedRouter, token_request

TOKENS = 16
BOUND = 120.0  # seconds that a request may take
GONE = ("REJECT_CODE_ADAPTER_UNKNOWN", "REJECT_CODE_ADAPTER_VERSION_UNAVAILABLE")
Quiet = Mapping[tuple[str, int], list[int]]


class RefusedError(Exception):
    """A request was rejected; the code."""


class TimedRouter(PlayedRouter):
    """Knows when tokens came: `gaps` are (time, seconds since the same choice's token before). It keeps no frames."""

    def __init__(self, call: Any):
        super().__init__(call)
        self.gaps: list[tuple[float, float]] = []
        self._last: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[Finished | pb.Reject]] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def end_of(self, handle: int) -> Finished | pb.Reject:
        """Its end, or the refusal of the Submit of the same number."""
        future = self._waiting.setdefault(handle, asyncio.get_running_loop().create_future())
        async with asyncio.timeout(BOUND):
            await asyncio.wait([future, self._ended], return_when=asyncio.FIRST_COMPLETED)
        assert future.done(), f"the stream ended: {self.error}"
        end = future.result()
        self._last.pop(handle, None)
        return end

    async def _read(self) -> None:
        await super()._read()
        self._ended.set_result(None)

    def _take(self, frame: pb.Down) -> None:
        super()._take(frame)
        self.frames.clear()
        match frame.WhichOneof("frame"):
            case "step_batch":
                self._time(frame.step_batch)
            case "finish":
                self._settle(frame.finish.handle, self.finish(frame.finish.handle))
            case "reject":
                self._settle(frame.reject.seq, frame.reject)

    def _time(self, batch: pb.StepBatch) -> None:
        now = time.perf_counter()
        for handle, count in zip(batch.handles, batch.counts, strict=True):
            if handle in self._last:
                self.gaps += [(now, (now - self._last[handle]) / count)] * count
            self._last[handle] = now

    def _settle(self, handle: int, end: Any) -> None:
        future = self._waiting.setdefault(handle, asyncio.get_running_loop().create_future())
        if not future.done():
            future.set_result(end)


@dataclass(kw_only=True)
class AdapterClient:
    """A worker's calls, and a router's stream; `tokens` may be asked for from many tasks at once."""

    stub: Any
    router: TimedRouter
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    seq: int = 0

    async def tokens(self, **options: Any) -> list[int]:
        """All tokens of a request that ends of itself. Raises RefusedError."""
        async with self.writing:
            self.seq += 1
            handle = self.seq
            await self.router.submit(token_request(handle, handle, **({"max_tokens": TOKENS} | options)))
        end = await self.router.end_of(handle)
        if isinstance(end, pb.Reject):
            raise RefusedError(pb.RejectCode.Name(end.code))
        assert end.reason is FinishReason.LENGTH, end
        return self.router.tokens(handle)

    async def ping(self) -> None:
        """A router that is silent is dropped."""
        while True:
            async with self.writing:
                await self.router.send(ping=pb.Ping(nonce=1))
            await asyncio.sleep(1)

    async def load(self, name: str, source: Path, **options: Any) -> pb.AdapterInfo:
        return await self.stub.LoadAdapter(pb.LoadAdapterRequest(name=name, source=str(source), **options))

    async def unload(self, name: str) -> None:
        await self.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name))

    async def quiet(self, cases: Sequence[tuple[str, int]], **options: Any) -> Quiet:
        """What each (adapter's name, number of a prompt) gives when nothing else is there."""
        return {(name, first): await self.tokens(adapter_name=name, first=first, **options) for name, first in cases}

    async def stream(self, quiet: Quiet, number: int, stop: asyncio.Event, **options: Any) -> int:
        """Requests one after the other, each as it was in quiet; how many, at least one."""
        cases, done = list(quiet), 0
        while not stop.is_set() or not done:
            name, first = cases[(number + done) % len(cases)]
            assert await self.tokens(adapter_name=name, first=first, **options) == quiet[name, first]
            done += 1
        return done

    async def operate(self, draw: random.Random, sources: Sequence[Path], names: int = 3) -> str:
        """One load, replacement or unload at random, and sometimes a request of what was loaded; what it was."""
        name, source = f"n{draw.randrange(names)}", draw.choice(list(sources))
        operation = draw.choice(["load", "replace", "unload"])
        try:
            if operation == "unload":
                await self.unload(name)
                return operation
            info = await self.load(name, source, replace=operation == "replace")
            if draw.random() < 0.5:
                await self.tokens(adapter_digest=info.digest, adapter_name=name, max_tokens=3)
        except RefusedError as error:
            if str(error) not in GONE:
                raise
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND):
                raise
            return "nothing"
        return operation


@asynccontextmanager
async def adapter_client(target: str) -> AsyncIterator[AdapterClient]:
    """Of the worker at this address."""
    async with rpc.channel(target) as channel:
        stub = pb_grpc.WorkerStub(channel)
        router = TimedRouter(stub.Serve())
        await router.send(hello=pb.Hello(protocol=PROTOCOL, router_id="r"))
        router.listen()
        client = AdapterClient(stub=stub, router=router)
        pings = asyncio.create_task(client.ping())
        try:
            yield client
        finally:
            pings.cancel()
            await router.close()
