"""One tenant's thousand requests at once: two others, steady and below their share, hardly see them, and are never bounced.

Twice the same steady load of B and C: beside an A that sends exactly its fair share, and beside one that sends all at once.
"""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from octavo.bench import load
from octavo.bench.metrics import percentile
from octavo.bench.workload import Item
from router.tenancy.records import TenantRecord
from tests.accept.run import ROOT
from tests.accept.tenants import TenantStack, items, tenant_stack

FLOOD = 1_000
SECONDS = 60.0
FLOOD_AFTER = 5.0
CAPACITY_SECONDS = 20.0
STEADY = 0.2  # of the capacity, each of B and C: their share is a third
FAIR = 1 / 3
LANES = 16
RUNNING = 16  # choices at a time: with more, a step of this machine takes several times as long as one of few
MOST = 1.5  # times the p99 beside a fair A
PROMPT, OUTPUT = 48, 16


@dataclass(kw_only=True, slots=True)
class _Seen:
    ttft: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  # when each of these was sent, on the clock's time
    errors: list[str] = field(default_factory=list)
    refused: int = 0


async def _one(session: aiohttp.ClientSession, model: str, item: Item, seen: _Seen) -> None:
    try:
        timeline = await load.request(session, item, model)
    except (load.RequestFailed, aiohttp.ClientError) as error:
        seen.refused += "HTTP 429" in str(error)
        seen.errors.append(str(error))
    else:
        seen.ttft.append(timeline.ttft)
        seen.sent.append(timeline.start)


async def _capacity(stack: TenantStack) -> float:
    """Requests a second of a closed loop that keeps the worker busy."""
    done, asked = _Seen(), items(1, PROMPT, OUTPUT)
    end = time.perf_counter() + CAPACITY_SECONDS

    async def lane(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() < end:
            await _one(session, stack.model, next(asked), done)

    begun = time.perf_counter()
    async with stack.session("a") as session:
        await asyncio.gather(*(lane(session) for _ in range(LANES)))
    return len(done.ttft) / (time.perf_counter() - begun)


async def _steady(stack: TenantStack, name: str, rate: float, asked: Iterator[Item]) -> _Seen:
    """Requests at even intervals, whatever becomes of those before."""
    seen = _Seen()
    async with stack.session(name) as session, asyncio.TaskGroup() as group:
        begun = time.perf_counter()
        for number in range(int(rate * SECONDS)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            group.create_task(_one(session, stack.model, next(asked), seen))
    return seen


async def _flooder(stack: TenantStack) -> Process:
    """The flooding client, ready to begin."""
    arguments = (f"http://{stack.stack.http}", stack.model, str(FLOOD), str(PROMPT), str(OUTPUT))
    environ, pipe = {**os.environ, "OCTAVO_API_KEY": stack.keys["a"]}, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.accept.flooder", *arguments, env=environ, cwd=ROOT, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


async def _at_once(flooder: Process) -> _Seen:
    """The flood, once the others are on their way."""
    await asyncio.sleep(FLOOD_AFTER)
    out, _ = await flooder.communicate(b"go\n")
    told = json.loads(out)
    return _Seen(refused=told["refused"], errors=["failed"] * told["failed"])


async def _beside(stack: TenantStack, capacity: float, seed: int, flooder: Process | None = None) -> dict[str, _Seen]:
    others = [_steady(stack, name, STEADY * capacity, items(seed + i, PROMPT, OUTPUT)) for i, name in enumerate("bc")]
    asked = items(seed + 9, PROMPT, OUTPUT)
    first = _at_once(flooder) if flooder else _steady(stack, "a", FAIR * capacity, asked)
    each = await asyncio.gather(first, *others)
    return dict(zip("abc", each, strict=True))


def _ttft(seen: Mapping[str, _Seen], percent: float) -> dict[str, float]:
    return {name: 1000 * percentile(seen[name].ttft, percent) for name in "bc"}


def _worst(seen: _Seen) -> list[dict[str, float]]:
    """The longest times to a first token, and how long after the first request these were sent."""
    told = sorted(zip(seen.ttft, seen.sent, strict=True), reverse=True)[:8]
    return [{"ttft_ms": round(1000 * ttft, 1), "sent_at_s": round(sent - min(seen.sent), 2)} for ttft, sent in told]


async def _measure(stack: TenantStack) -> dict[str, Any]:
    capacity = await _capacity(stack)
    fair = await _beside(stack, capacity, 100)
    flooded = await _beside(stack, capacity, 200, await _flooder(stack))
    before, after = _ttft(fair, 99), _ttft(flooded, 99)
    ratios = {name: after[name] / before[name] for name in "bc"}
    bounced = {name: flooded[name].refused for name in "abc"}
    spared = not (flooded["b"].errors or flooded["c"].errors)
    return {
        "passed": max(ratios.values()) <= MOST and spared and bounced["a"] > 0,
        "max_running": RUNNING,
        "capacity_requests_per_second": capacity,
        "requests_of_b_and_c": [len(flooded[name].ttft) for name in "bc"],
        "p99_ttft_ms_beside_a_fair_a": before,
        "p99_ttft_ms_beside_a_flood": after,
        "ratios": ratios,
        "median_ttft_ms": {"beside_a_fair_a": _ttft(fair, 50), "beside_a_flood": _ttft(flooded, 50)},
        "worst_beside_a_flood": {name: _worst(flooded[name]) for name in "bc"},
        "bounced": bounced,
        "first_errors": [error for seen in flooded.values() for error in seen.errors][:3],
    }


def show() -> Mapping[str, Any]:
    """Passes where B's and C's p99 grow by half at most, and A alone is bounced."""
    with tenant_stack([TenantRecord(name=name) for name in "abc"], ("--max-running", str(RUNNING))) as stack:
        return asyncio.run(_measure(stack))
