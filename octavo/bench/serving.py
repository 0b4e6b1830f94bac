"""`octavo bench serving`: the figures of a server at several concurrencies."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from octavo.bench import load, machine, metrics
from octavo.bench.workload import Workload
from octavo.supervise.stack import Stack, StackConfig
from shared.errors import Internal
from shared.supervise.supervised import Report

LEAST_REQUESTS = 8
ROUNDS = 4  # requests of each client, where their number is not given


@asynccontextmanager
async def served(config: StackConfig, report: Report) -> AsyncIterator[str]:
    """A stack for as long as the block lasts; its URL. Raises StartFailed."""
    stack = Stack(config, report)
    try:
        endpoints = await stack.start()
        yield f"http://{endpoints.http}"
    finally:
        await stack.stop()


def requests_for(concurrency: int, requests: int | None) -> int:
    """How many requests a run has."""
    return requests or max(LEAST_REQUESTS, ROUNDS * concurrency)


async def _run(
    client: aiohttp.ClientSession, workload: Workload, model: str, concurrency: int, requests: int | None
) -> Mapping[str, Any]:
    part = workload.first(requests_for(concurrency, requests))
    outcome = await load.run(client, part, model, concurrency)
    if not outcome.timelines:
        raise Internal(f"no request was answered at concurrency {concurrency}; the first error: {outcome.errors[0]}")
    failed = {"failed": len(outcome.errors), "errors": sorted(set(outcome.errors))[:5]}
    return {"concurrency": concurrency, **failed, **metrics.summary(outcome.timelines)}


async def measure(
    url: str,
    workload: Workload,
    *,
    model: str | None,
    concurrencies: Sequence[int],
    requests: int | None,
    progress: Callable[[str], None],
    api_key: str | None = None,
) -> dict[str, Any]:
    """A report of all runs, one after the other, after one request that does not count. Raises OctavoErrors."""
    async with load.session(url, api_key) as client:
        name = model or await load.only_model(client)
        await load.request(client, workload.items[0], name)
        runs = []
        for concurrency in concurrencies:
            runs.append(await _run(client, workload, name, concurrency, requests))
            progress(line(runs[-1]))
    return report("octavo bench serving", name, workload, runs)


def report(tool: str, model: str, workload: Workload, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures with all that one must know to read them."""
    return {
        "tool": tool,
        "model": model,
        "workload": workload.name,
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "runs": list(runs),
    }


def line(run: Mapping[str, Any]) -> str:
    """One run, for people."""
    return (
        f"concurrency {run['concurrency']:>3}: {run['output_throughput']:8.1f} output tok/s, "
        f"TTFT {run['median_ttft_ms']:.0f} ms, TPOT {run['median_tpot_ms']:.1f} ms, "
        f"ITL {run['median_itl_ms']:.1f} ms (medians); {run['completed']} answered, {run['failed']} failed"
    )
