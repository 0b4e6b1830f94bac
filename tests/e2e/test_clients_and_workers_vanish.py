"""Clients that leave in the middle, and a worker that dies: nobody else notices, and nothing is left behind."""

import asyncio
import os
import random
import re
import signal

import httpx

from octavo.client.aio import AsyncClient
from tests.e2e.stack import RunningStack, until, until_at_rest

CLIENTS = 64


async def _over_http(client: httpx.AsyncClient, model: str, leave_after: int | None) -> tuple[int, int]:
    """Finishes seen and [DONE]s seen; leaves after some chunks where told to."""
    body = {"model": model, "prompt": "Once", "max_tokens": 40, "stream": True, "ignore_eos": True}
    finishes = dones = chunks = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            chunks += line.startswith("data: {")
            finishes += '"finish_reason":"' in line
            dones += line == "data: [DONE]"
            if leave_after is not None and chunks > leave_after:
                break
    return finishes, dones


async def _over_grpc(client: AsyncClient, leave_after: int | None) -> tuple[int, int]:
    """Finishes seen, and 1 where the stream ended well with its usage; leaves after some deltas where told to."""
    finishes = 0
    async with await client.complete("Once", stream=True, max_tokens=40, ignore_eos=True) as stream:
        deltas = 0
        async for delta in stream:
            deltas += 1
            finishes += delta.finish_reason is not None
            if leave_after is not None and deltas > leave_after:
                break
        return finishes, int(stream.usage is not None and stream.usage.completion_tokens == 40)


def _resting(address: str) -> dict[str, float]:
    """The router's gauges of requests."""
    text = httpx.get(f"http://{address}/metrics", timeout=30).text
    found = re.findall(r"^octavo_router_(requests_in_flight|requests_queued)\{.*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


async def test_of_64_clients_half_vanish_and_the_others_end_once(stack: RunningStack) -> None:
    draw = random.Random(5)
    leave = [draw.randrange(20) if i % 4 < 2 else None for i in range(CLIENTS)]
    async with (
        httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=90) as http,
        AsyncClient(stack.grpc, timeout=90) as grpc,
    ):
        streams = (
            _over_http(http, stack.model, after) if i % 2 else _over_grpc(grpc, after) for i, after in enumerate(leave)
        )
        seen = await asyncio.gather(*streams)
        for ended, after in zip(seen, leave, strict=True):
            assert after is not None or ended == (1, 1)
        for address in stack.workers:
            load = await asyncio.to_thread(until_at_rest, address)
            assert load.free_blocks == load.total_blocks
    rest = {"requests_in_flight": 0, "requests_queued": 0}
    await asyncio.to_thread(until, lambda: _resting(stack.http) == rest, "the router's gauges to be zero")


def _resumed(address: str) -> float:
    """Streams that went on at another worker, as if nothing had been."""
    text = httpx.get(f"http://{address}/metrics", timeout=30).text
    return sum(
        map(float, re.findall(r'^octavo_router_resumed_total\{.*numerics="exact".*\} (\S+)$', text, re.MULTILINE))
    )


async def test_killing_one_of_two_workers_leaves_every_stream_whole(own_stack: RunningStack) -> None:
    """Those of the other worker are untouched, and those that were here go on there."""
    async with AsyncClient(own_stack.grpc, timeout=90) as client:
        settled = asyncio.Semaphore(0)

        async def run() -> str:
            stream = await client.complete("Once", max_tokens=500, ignore_eos=True, temperature=0.0, stream=True)
            text = []
            async for delta in stream:
                text.append(delta.text)
                if len(text) == 1:
                    settled.release()
            assert stream.usage is not None
            assert stream.usage.completion_tokens == 500
            return "".join(text)

        tasks = [asyncio.create_task(run()) for _ in range(8)]
        for _ in tasks:
            await settled.acquire()
        os.kill(own_stack.worker_pids[0], signal.SIGKILL)
        ends = await asyncio.gather(*tasks)
    assert len(set(ends)) == 1
    resumed = await asyncio.to_thread(_resumed, own_stack.http)
    assert 1 <= resumed <= 7, "the load was not shared"
