"""What `octavo bench placement` tells: policies side by side, over real streams beside the simulation where asked, and at which load."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from octavo.bench.placement import bound, load, measures, oracle, simulation, streams
from octavo.bench.placement.simulation import Setup
from octavo.bench.placement.trace import Arrival
from router.placement import POLICIES

Progress = Callable[[str], None]
SEEDS = 4


def _line(name: str, found: Mapping[str, Any], best: float) -> str:
    return (
        f"{name:>12}: hit rate {found['hit_rate']:.3f} of {best:.3f}, imbalance p95 {found['imbalance_p95']:.2f}, "
        f"TTFT p50 / p99 {found['ttft_p50']:.2f} / {found['ttft_p99']:.2f} s, {found['failed']} failed"
    )


def _balance_line(ratios: Mapping[str, Mapping[str, float]]) -> str:
    told = ", ".join(f"{name} {found['p95']:.2f} / {found['median']:.2f}" for name, found in ratios.items())
    return f"   imbalance p95 / median, and what the same prompts make of it by other choices: {told}"


def simulated_hit_rates(arrivals: Sequence[Arrival], policy: str, setup: Setup) -> list[float]:
    """Of SEEDS runs: times differ by the jitter of steps, and what is found cached by some hundredths of itself."""
    runs = (
        simulation.simulate(arrivals, POLICIES[policy], replace(setup, seed=setup.seed + seed)) for seed in range(SEEDS)
    )
    return [measures.hit_rate(run.outcomes) for run in runs]


def streamed(arrivals: Sequence[Arrival], policy: str, setup: Setup) -> dict[str, Any]:
    """The figures over real streams. `by_simulated` is their hit rate by the mean of what the simulator finds."""
    found = asyncio.run(streams.replay(arrivals, policy, setup)).summary()
    rates = simulated_hit_rates(arrivals, policy, setup)
    mean = fmean(rates)
    return {**found, "simulated_hit_rates": rates, "by_simulated": found["hit_rate"] / mean if mean else 0.0}


def _streamed_line(found: Mapping[str, Any]) -> str:
    return (
        f"   over gRPC: hit rate {found['hit_rate']:.3f} ({100 * found['by_simulated']:.1f} % of the simulator's mean), "
        f"TTFT p50 / p99 {found['ttft_p50']:.2f} / {found['ttft_p99']:.2f} s, {found['failed']} failed"
    )


def side_by_side(
    arrivals: Sequence[Arrival],
    policies: Sequence[str],
    setup: Setup,
    blocks: int,
    progress: Progress,
    *,
    over_grpc: bool,
) -> dict[str, Any]:
    """Each policy in turn, over real streams too where asked. `blocks` are the trace's, over all caches."""
    best, told = bound.lru_hit_rate(arrivals, blocks), dict[str, Any]()
    for name in policies:
        run = simulation.simulate(arrivals, POLICIES[name], setup)
        found = told[name] = {**measures.summary(run), "imbalance": oracle.told(run, setup)}
        progress(_line(name, found, best))
        progress(_balance_line(found["imbalance"]))
        if over_grpc:
            found["over_grpc"] = streamed(arrivals, name, setup)
            progress(_streamed_line(found["over_grpc"]))
    return {"bound_hit_rate": best, "policies": told}


def doubled(arrivals: Sequence[Arrival], policy: str, setup: Setup, progress: Progress) -> dict[str, Any]:
    """Where this policy's p99 of TTFT has doubled, as load.Doubling has it, and whose it is."""
    found = load.doubling(arrivals, POLICIES[policy], setup)
    progress(
        f"{policy}: p99 of TTFT {found.unloaded_ttft_p99:.2f} s at {load.UNLOADED:g} times the trace's speed, "
        f"{found.ttft_p99:.2f} s at {found.speed:.2f} times"
    )
    return {"policy": policy, **asdict(found)}


def ttft_shares(policies: Mapping[str, Mapping[str, Any]], progress: Progress) -> dict[str, float]:
    """The first policy's p99 of TTFT by each of the others'."""
    first, *others = policies
    shares = {name: policies[first]["ttft_p99"] / policies[name]["ttft_p99"] for name in others}
    if shares:
        told = ", ".join(f"{share:.2f} of {name}'s" for name, share in shares.items())
        progress(f"p99 of TTFT with {first}: {told}")
    return shares


def as_requests(arrivals: Sequence[Arrival], seconds: float) -> list[Arrival]:
    """Those that come so soon, with what a request tells: it allows as many outputs as come."""
    return [replace(each, most_outputs=each.output_tokens) for each in arrivals if each.at < seconds]
