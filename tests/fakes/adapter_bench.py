"""A fake worker that serves adapters, with its unary calls and one router's stream; and streams of others that check their tokens."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc as pb_grpc
from shared import rpc
from shared.types import AdapterLevel, AdapterState, FinishReason, TokenRequest
from shared.wire import adapters as wire
from tests.fakes import adapters as fakes
from tests.fakes.engine import FakeWorker, PlayedRouter, fake_worker, played_router, token_request
from tests.fakes.scripted_worker import until

CODES = {code: name.removeprefix("REJECT_CODE_") for name, code in pb.RejectCode.items()}


class Bench:
    """A worker with two slots for adapters, its unary calls, and one router's stream."""

    def __init__(self, worker: FakeWorker, router: PlayedRouter, stub: Any, root: Path):
        assert worker.adapters is not None
        assert worker.hub.adapters is not None
        self.worker, self.router, self.stub, self.root = worker, router, stub, root
        self.reader: Any = worker.adapters.read
        self.device: Any = worker.adapters.device
        self.service = worker.hub.adapters
        self.seq = 0
        self.writing = asyncio.Lock()

    async def load(self, name: str, source: Path | str = "", **options: Any) -> pb.AdapterInfo:
        return await self.stub.LoadAdapter(pb.LoadAdapterRequest(name=name, source=str(source), **options))

    async def unload(self, name: str) -> None:
        await self.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name))

    async def submit(self, **options: Any) -> TokenRequest:
        async with self.writing:
            self.seq += 1
            request = token_request(self.seq, self.seq, **options)
            await self.router.submit(request)
        return request

    async def ends(self, request: TokenRequest, digest: bytes | None = None) -> None:
        """It ends of itself, with the tokens of this version."""
        handle = request.choices[0].handle
        (end,) = await self.router.finished(handle)
        assert end.reason is FinishReason.LENGTH, end
        assert self.router.tokens(handle) == self.worker.expected(request, adapter=digest)

    async def refused(self, request: TokenRequest) -> tuple[str, str]:
        """The code and the message of its Reject."""
        found = await until(
            lambda: next((one for one in self.router.of("reject") if one.seq == request.seq), None), "a Reject"
        )
        return CODES[found.code], found.message

    def states(self) -> list[AdapterState]:
        return [wire.adapter_state_from_pb(state) for state in self.router.of("adapter_state")]

    def level(self, name: str) -> AdapterLevel | None:
        """What the router was last told; None where the name is gone or was never told."""
        level = None
        for state in self.states():
            level = None if name in state.removed else level
            level = next((info.level for info in state.entries if info.name == name), level)
        return level

    def nothing_is_left(self) -> None:
        catalog = self.service.library.catalog
        catalog.check_integrity()
        assert (catalog.used, catalog.versions, catalog.entries) == (0, {}, {})
        assert not self.device.there


@asynccontextmanager
async def bench(
    tmp_path: Path, *, scanned: bool = True, host_bytes: int = 1 << 20, **options: Any
) -> AsyncIterator[Bench]:
    root = tmp_path / "adapters"
    root.mkdir()
    parts = partial(fakes.parts, slots=2, directory=root if scanned else None, host_bytes=host_bytes)
    async with fake_worker(adapters=parts, **options) as worker, played_router(worker) as router:
        async with rpc.channel(worker.target) as channel:
            yield Bench(worker, router, pb_grpc.WorkerStub(channel), root)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def code_of(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    return error.code().name, rpc.from_rpc_error(error).code


async def run_streams(b: Bench, requests: Sequence[TokenRequest], stop: asyncio.Event) -> int:
    """Requests one after the other, each checked, until it is told to stop; how many."""
    done = 0
    while not stop.is_set():
        template = requests[done % len(requests)]
        request = await b.submit(
            prompt_tokens=template.prompt_tokens, max_tokens=20, adapter_digest=template.adapter_digest
        )
        await b.ends(request)
        done += 1
    return done


@asynccontextmanager
async def others(b: Bench, digest: bytes, count: int = 16) -> AsyncIterator[None]:
    """Streams of others, on the base and on one adapter, while something happens: each gets the tokens that it would get alone."""
    stop = asyncio.Event()
    templates = [token_request(1, 1, length=24, adapter_digest=own) for own in (b"", digest)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_streams(b, templates[n % 2 :] + templates[: n % 2], stop)) for n in range(count)]
        try:
            yield
        finally:
            stop.set()
    assert all(task.result() for task in tasks)


async def random_operations(b: Bench, sources: Sequence[Path], count: int, seed: int) -> None:
    """Loads, replacements and unloads of a few names, with requests for them between; each request that is taken ends."""
    draw = random.Random(seed)
    for _ in range(count):
        name, source = f"n{draw.randrange(4)}", draw.choice(sources)
        operation = draw.choice(["load", "replace", "unload", "use"])
        try:
            if operation == "use":
                await b.submit(adapter_name=name)
            elif operation == "unload":
                await b.unload(name)
            else:
                await b.load(name, source, replace=operation == "replace")
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND):
                raise
        b.service.library.catalog.check_integrity()
