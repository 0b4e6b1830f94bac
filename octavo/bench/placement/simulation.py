"""One run: arrivals over routers and workers, sampled as it goes. The same arguments give the same outcomes, to the last bit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from octavo.bench.placement.clock import SimClock
from octavo.bench.placement.router import Outcome, SimRouter
from octavo.bench.placement.trace import Arrival
from octavo.bench.placement.worker import SimWorker, WorkerSpec
from router.placement.view import Policy
from shared.errors import InvalidRequest
from shared.hashing import BLOCK_SIZE

DELAY = 0.0005  # seconds, one way
SAMPLE = 0.25  # seconds between looks at what is outstanding


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """`routers` take arrivals in turn."""

    workers: int
    spec: WorkerSpec
    routers: int = 1
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What came of it. `outstanding` are, at each look, every worker's prompt tokens not computed yet by its prefill rate: seconds."""

    outcomes: list[Outcome] = field(default_factory=list)
    outstanding: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    failed: int = 0
    steps: int = 0


def simulate(arrivals: Sequence[Arrival], policy: Policy, setup: Setup) -> Run:
    """Until every request has ended. Raises InvalidRequest where not one could be served."""
    clock, outcomes = SimClock(), list[Outcome]()
    workers = [
        SimWorker(f"w{number:03d}", setup.spec, clock, seed=setup.seed, delay=DELAY) for number in range(setup.workers)
    ]
    routers = [SimRouter(policy, clock, outcomes.append) for _ in range(setup.routers)]
    for router in routers:
        for worker in workers:
            router.connect(worker)
    for arrival, router in zip(arrivals, cycle(routers), strict=False):
        clock.at(1.0 + arrival.at, lambda arrival=arrival, router=router: router.arrive(arrival))  # type: ignore[misc]
    outstanding: list[tuple[float, tuple[float, ...]]] = []
    last = 1.0 + arrivals[-1].at

    def look() -> None:
        outstanding.append((clock(), tuple(map(_outstanding, workers))))
        if clock() < last:
            clock.after(SAMPLE, look)

    clock.at(1.0, look)
    clock.run()
    if not outcomes:
        raise InvalidRequest(
            f"none of the requests fits into a worker's {setup.spec.blocks} blocks of {BLOCK_SIZE} tokens"
        )
    failed = sum(router.failed for router in routers)
    return Run(outcomes=outcomes, outstanding=outstanding, failed=failed, steps=sum(worker.steps for worker in workers))


def _outstanding(worker: SimWorker) -> float:
    stats = worker.scheduler.stats(0.0)
    return stats.waiting_uncached_tokens / stats.prefill_tokens_per_s + stats.waiting_pairs * stats.pair_s
