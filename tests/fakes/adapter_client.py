"""A router and an operator of a worker that serves adapters: requests that are checked, and loads at random beside them."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc as pb_grpc
from shared import rpc
from shared.types import FinishReason
from tests.fakes.engine import PlayedRouter, played_router, token_request
from tests.fakes.scripted_worker import until

TOKENS = 16
GONE = ("REJECT_CODE_ADAPTER_UNKNOWN", "REJECT_CODE_ADAPTER_VERSION_UNAVAILABLE")
Quiet = Mapping[tuple[str, int], list[int]]


class RefusedError(Exception):
    """A request was rejected; the code."""


@dataclass(kw_only=True)
class AdapterClient:
    """A worker's calls, and a router's stream; `tokens` may be asked for from many tasks at once."""

    stub: Any
    router: PlayedRouter
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    seq: int = 0

    async def tokens(self, **options: Any) -> list[int]:
        """All tokens of a request that ends of itself. Raises RefusedError."""
        async with self.writing:
            self.seq += 1
            handle = self.seq
            await self.router.submit(token_request(handle, handle, **({"max_tokens": TOKENS} | options)))
        await until(lambda: self.router.finish(handle) or self._reject(handle), f"the end of {handle}")
        reject, end = self._reject(handle), self.router.finish(handle)
        if reject is not None:
            raise RefusedError(pb.RejectCode.Name(reject.code))
        assert end is not None
        assert end.reason is FinishReason.LENGTH, end
        return self.router.tokens(handle)

    def _reject(self, seq: int) -> Any:
        return next((reject for reject in self.router.of("reject") if reject.seq == seq), None)

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
    async with played_router(target) as router, rpc.channel(target) as channel:
        yield AdapterClient(stub=pb_grpc.WorkerStub(channel), router=router)
