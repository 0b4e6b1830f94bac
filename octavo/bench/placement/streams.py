"""The same arrivals over real streams in real time: routers and workers are the ones that serve, only models are missing (`asleep`).

The routers are in this process, the workers in another, gRPC between them. What they find cached is to be what the simulator finds.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from octavo.bench.placement.measures import hit_rate, percentile
from octavo.bench.placement.simulation import Setup
from octavo.bench.placement.trace import Arrival
from router.assemble import start_service
from router.dispatch import RouterService
from router.dispatch.settings import DispatchSettings
from router.request import GenerateRequest, SamplingOptions, TokenPrompt
from shared.errors import OctavoError

START_SECONDS = 60.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.05
MODEL = "simulated"


class Served(NamedTuple):
    """What came of a request. Times are seconds since it came; `late` is how much later than due it came."""

    late: float
    ttft: float
    e2e: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What came of all. `failures` are what the others ended with."""

    served: list[Served] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The figures, by the names of measures.summary."""
        ttft = [each.ttft for each in self.served]
        return {
            "requests": len(self.served),
            "failed": len(self.failures),
            "failures": sorted(set(self.failures)),
            "hit_rate": hit_rate(self.served),
            "ttft_mean": sum(ttft) / len(ttft) if ttft else 0.0,
            "ttft_p50": percentile(ttft, 0.5) if ttft else 0.0,
            "ttft_p99": percentile(ttft, 0.99) if ttft else 0.0,
            "late_most": max((each.late for each in self.served), default=0.0),
        }


@asynccontextmanager
async def _workers(setup: Setup) -> AsyncIterator[list[str]]:
    """Where they listen."""
    spec = json.dumps(asdict(setup.spec))
    flags = ("--workers", str(setup.workers), "--spec", spec, "--seed", str(setup.seed))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{__package__}.asleep", *flags, stdout=asyncio.subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"the workers ended with {await process.wait()}")
        yield json.loads(line)["targets"]
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _ready(service: RouterService) -> None:
    for _ in range(round(START_SECONDS / LOOK_SECONDS)):
        if service.ready() and all(each.state == "ready" for each in service.workers()):
            return
        await asyncio.sleep(LOOK_SECONDS)
    raise TimeoutError(f"not every worker is ready within {START_SECONDS:g} s")


@asynccontextmanager
async def _router(targets: Sequence[str], policy: str) -> AsyncIterator[RouterService]:
    """One that sees all of them."""
    with tempfile.TemporaryDirectory() as cache:
        service = await start_service(
            targets, registry=CollectorRegistry(), dispatch=DispatchSettings(policy=policy), cache=Path(cache)
        )
        try:
            await _ready(service)
            yield service
        finally:
            await service.aclose()


def _request(arrival: Arrival) -> GenerateRequest:
    return GenerateRequest(
        model=MODEL,
        prompt=TokenPrompt(tokens=arrival.tokens()),
        sampling=SamplingOptions(temperature=0.0, max_tokens=arrival.output_tokens, ignore_eos=True),
        prompt_cache_key=arrival.session.decode(),
    )


async def _one(service: RouterService, arrival: Arrival, due: float, replay: Replay) -> None:
    """It comes when it is due, by time.monotonic, and is read to its end."""
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    came, first = time.monotonic(), 0.0
    try:
        generation = await service.generate(_request(arrival))
        async for pieces in generation:
            if not first and any(piece.tokens for piece in pieces):
                first = time.monotonic()
    except OctavoError as error:
        replay.failures.append(f"{error.code}: {error}")
        return
    usage, over = generation.usage, time.monotonic()
    replay.served.append(
        Served(
            late=came - due,
            ttft=first - came,
            e2e=over - came,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )
    )


async def replay(arrivals: Sequence[Arrival], policy: str, setup: Setup) -> Replay:
    """Until every request has ended, which takes as long as the arrivals say and somewhat more. Routers take them in turns."""
    found = Replay()
    async with _workers(setup) as targets, AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(_router(targets, policy)) for _ in range(setup.routers)]
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for arrival, router in zip(arrivals, cycle(routers), strict=False):
                group.create_task(_one(router, arrival, began + arrival.at, found))
    return found
