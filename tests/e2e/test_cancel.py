"""C16, C17: a client that leaves, over either API and in any phase, leaves nothing running (`engine_cases.md`)."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.client.aio import AsyncClient
from protos import worker_pb2 as pb
from tests.e2e.stack import RunningStack, until_at_rest, worker_load

# Few slots, so that a request waits; few tokens a step and slow kernels, so that each phase lasts.
NARROW = (
    "--backend",
    "reference",
    "--threads",
    "1",
    "--kv-memory",
    "16MiB",
    "--max-model-len",
    "512",
    "--max-running",
    "4",
    "--step-tokens",
    "8",
    "--check-integrity",
)
LONG = 440  # tokens of an answer that outlasts what the test does meanwhile
BOUND = 40.0

Ask = Callable[[RunningStack, list[int], int, asyncio.Event], Awaitable[None]]


@pytest.fixture(scope="module")
def narrow(tiny_model: Path) -> Iterator[RunningStack]:
    running = RunningStack(tiny_model, workers=1, worker_arguments=NARROW)
    yield running
    assert running.stop() == 0, running.said()


def _body(stack: RunningStack, prompt: list[int], n: int, **more: Any) -> dict[str, Any]:
    return {"model": stack.model, "prompt": prompt, "max_tokens": 512 - len(prompt), "n": n, "ignore_eos": True, **more}


async def _http_stream(stack: RunningStack, prompt: list[int], n: int, first: asyncio.Event) -> None:
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=BOUND) as client:
        async with client.stream("POST", "/v1/completions", json=_body(stack, prompt, n, stream=True)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    first.set()


async def _http_whole(stack: RunningStack, prompt: list[int], n: int, first: asyncio.Event) -> None:
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=BOUND) as client:
        await client.post("/v1/completions", json=_body(stack, prompt, n))


async def _grpc_stream(stack: RunningStack, prompt: list[int], n: int, first: asyncio.Event) -> None:
    async with AsyncClient(stack.grpc, timeout=BOUND) as client:
        async with await client.complete(
            prompt, stream=True, n=n, max_tokens=512 - len(prompt), ignore_eos=True
        ) as stream:
            async for _ in stream:
                first.set()


async def _grpc_whole(stack: RunningStack, prompt: list[int], n: int, first: asyncio.Event) -> None:
    async with AsyncClient(stack.grpc, timeout=BOUND) as client:
        await client.complete(prompt, n=n, max_tokens=512 - len(prompt), ignore_eos=True)


WAYS: dict[str, Ask] = {
    "http-stream": _http_stream,
    "http-whole": _http_whole,
    "grpc-stream": _grpc_stream,
    "grpc-whole": _grpc_whole,
}


async def _until_load(stack: RunningStack, condition: Callable[[pb.Load], bool], what: str) -> pb.Load:
    """The first account of the worker's that fits; fails, with the last one, after BOUND."""
    end = time.monotonic() + BOUND
    while not condition(load := await asyncio.to_thread(worker_load, stack.workers[0])):
        assert time.monotonic() < end, f"waited in vain for {what}: {load}"
    return load


async def _ended(stack: RunningStack) -> dict[str, float]:
    """Requests that the router has seen end, by outcome; those in flight under "open"."""
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=BOUND) as client:
        text = (await client.get("/metrics")).text
    counts = re.findall(r'^octavo_router_requests_total\{.*?outcome="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    still = re.findall(r"^octavo_router_requests_in_flight\{.*\} (\S+)$", text, re.MULTILINE)
    return {**{outcome: float(count) for outcome, count in counts}, "open": sum(map(float, still))}


@asynccontextmanager
async def _all_slots_taken(stack: RunningStack) -> AsyncIterator[None]:
    """For the block's time every slot runs something long; at its end, that must have been answered whole."""
    async with AsyncClient(stack.grpc, timeout=BOUND) as client:
        blocker = asyncio.create_task(client.complete([5], n=4, max_tokens=LONG, ignore_eos=True, return_tokens=True))
        await _until_load(stack, lambda load: load.running == 4, "running slots")
        yield
        answer = await blocker
    assert [len(choice.tokens) for choice in answer.choices] == [LONG] * 4


async def _leave(task: "asyncio.Task[None]") -> None:
    assert not task.done(), "it ended before the client could leave"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def _one_cancelled(stack: RunningStack) -> AsyncIterator[None]:
    """The block makes exactly one client leave: afterwards nothing runs, no block is held, and one request more counts as cancelled."""
    before = await _ended(stack)
    yield
    load = await asyncio.to_thread(until_at_rest, stack.workers[0])
    assert load.free_blocks == load.total_blocks
    async with asyncio.timeout(BOUND):
        while (after := await _ended(stack))["open"]:
            await asyncio.sleep(0)
    assert after.get("cancelled", 0) == before.get("cancelled", 0) + 1


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_while_queued_never_runs(narrow: RunningStack, way: str, n: int) -> None:
    async with _one_cancelled(narrow), _all_slots_taken(narrow):
        task = asyncio.create_task(WAYS[way](narrow, [7, 8], n, asyncio.Event()))
        await _until_load(narrow, lambda load: load.waiting > 0, "a waiting request")
        await _leave(task)
        load = await _until_load(narrow, lambda load: load.waiting == 0, "an empty queue")
        assert load.running == 4


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_during_prefill_frees_everything(narrow: RunningStack, way: str, n: int) -> None:
    prompt = [10 + (7 * i + 13 * len(way) + n) % 400 for i in range(440)]  # 55 steps, none of them cached
    async with _one_cancelled(narrow):
        task = asyncio.create_task(WAYS[way](narrow, prompt, n, asyncio.Event()))
        await _until_load(narrow, lambda load: load.running > 0, "a running request")
        await _leave(task)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_leaves_during_decode_frees_everything(narrow: RunningStack, way: str, n: int) -> None:
    async with _one_cancelled(narrow):
        first = asyncio.Event()
        task = asyncio.create_task(WAYS[way](narrow, [9], n, first))
        if way.endswith("stream"):
            await asyncio.wait_for(first.wait(), BOUND)
        else:
            await _until_load(narrow, lambda load: load.context_tokens > 4 * n, "some tokens")
        await _leave(task)
