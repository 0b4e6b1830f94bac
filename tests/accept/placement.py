"""Mooncake's conversations over eight simulated workers, policies in one run: what is found cached, how work spreads, how long it waits.

One cache of the summed size is the bound. Loads are times the trace's own speed; the one at which policies are compared is where round
robin's p99 of TTFT has doubled, found on the trace's first requests.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.bench.placement import bound, load, measures, report, simulation, trace, worker
from router.placement import POLICIES
from shared.hashing import BLOCK_SIZE
from tests.accept.run import ROOT
from worker.scheduler.steptime import ASSUMED

WORKERS = 8
LARGE, SMALL = 30_000, 10_000  # blocks of the trace, over all workers
FIRST = 2_000  # requests on which the load is searched
SLICE_SECONDS, SLICE_SPEED = 180.0, 2.0  # of the run over real streams
HITS, BALANCE, OVER_LEAST_LOADED, TTFT, TWO_ROUTERS, REAL = 0.9, 1.5, 0.15, 0.5, 0.95, 0.05
YARDSTICKS = ("cost", "least_loaded", "round_robin")


def _trace() -> list[trace.Arrival]:
    shared = Path(os.environ.get("OCTAVO_SHARED", ROOT.parent / "shared"))
    return trace.mooncake(shared / "data" / "traces" / "mooncake" / "conversation_trace.jsonl.gz")


def _setup(blocks: int, routers: int = 1) -> simulation.Setup:
    each = blocks * trace.GRAIN // BLOCK_SIZE // WORKERS
    return simulation.Setup(workers=WORKERS, routers=routers, spec=worker.WorkerSpec(parameters=ASSUMED, blocks=each))


def _run(
    arrivals: list[trace.Arrival], policy: str, blocks: int, speed: float = 1.0, routers: int = 1
) -> dict[str, Any]:
    run = simulation.simulate(trace.faster(arrivals, speed), POLICIES[policy], _setup(blocks, routers))
    return {"policy": policy, "blocks": blocks, "speed": speed, "routers": routers, **measures.summary(run)}


def hits() -> Mapping[str, Any]:
    """At the trace's own speed, as a share of the bound."""
    began, arrivals = time.process_time(), _trace()
    told, shares = [], []
    for blocks in (LARGE, SMALL):
        best, found = bound.lru_hit_rate(arrivals, blocks), _run(arrivals, "cost", blocks)
        shares.append(found["hit_rate"] / best)
        told.append({"bound": best, "share_of_bound": shares[-1], **found})
    return {"passed": min(shares) >= HITS, "share_of_bound": shares, "runs": told, "cpu_s": time.process_time() - began}


def loaded() -> Mapping[str, Any]:
    """At the load where round robin's p99 of TTFT has doubled. Balance is the busiest worker's prefill seconds by the mean, a minute."""
    began, arrivals = time.process_time(), _trace()[:FIRST]
    at = load.doubling(arrivals, POLICIES["round_robin"], _setup(LARGE))
    runs = {policy: _run(arrivals, policy, LARGE, at.speed) for policy in YARDSTICKS}
    ttft = {policy: run["ttft_p99"] for policy, run in runs.items()}
    balance = {policy: run["imbalance_p95"] for policy, run in runs.items()}
    waits = ttft["cost"] <= TTFT * ttft["round_robin"] and ttft["cost"] <= ttft["least_loaded"]
    spread = balance["cost"] <= BALANCE and balance["cost"] <= balance["least_loaded"] + OVER_LEAST_LOADED
    return {
        "passed": waits and spread,
        "ttft_passed": waits,
        "balance_passed": spread,
        "speed": at.speed,
        "unloaded_ttft_p99": at.unloaded_ttft_p99,
        "ttft_p99": ttft,
        "imbalance_p95": balance,
        "runs": list(runs.values()),
        "cpu_s": time.process_time() - began,
    }


def two_routers() -> Mapping[str, Any]:
    """The same requests through one router and, in turns, through two that do not hear of each other."""
    began, arrivals = time.process_time(), _trace()[:FIRST]
    one, two = (_run(arrivals, "cost", LARGE, routers=routers)["hit_rate"] for routers in (1, 2))
    return {"passed": two >= TWO_ROUTERS * one, "hit_rates": [one, two], "cpu_s": time.process_time() - began}


def over_grpc() -> Mapping[str, Any]:
    """Three minutes through a real router and real workers that sleep through their steps, beside the simulation of the same requests."""
    began, setup = time.monotonic(), _setup(SMALL)
    arrivals = report.as_requests(trace.faster(_trace(), SLICE_SPEED), SLICE_SECONDS)
    simulated = measures.summary(simulation.simulate(arrivals, POLICIES["cost"], setup))
    real = report.streamed(arrivals, "cost", setup)
    return {
        "passed": abs(real["by_simulated"] - 1.0) <= REAL and not real["failed"],
        "by_simulated": real["by_simulated"],
        "bound": bound.lru_hit_rate(arrivals, SMALL),
        "simulated": simulated,
        "over_grpc": real,
        "seconds": round(time.monotonic() - began, 1),
    }
