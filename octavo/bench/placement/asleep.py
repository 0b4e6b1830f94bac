"""Workers with all that is real but a model: scheduler, engine thread, block pool, prefix cache, streams; a step is slept through.

    python -m octavo.bench.placement.asleep --workers 8 --spec '{"parameters": [...], "blocks": 5000}'

One process for all of them; it prints {"event": "listening", "targets": [...]} once they serve, and ends at SIGTERM. `spec` are the
fields of WorkerSpec, so that a step takes as long as in a simulation.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass

import uvloop
from prometheus_client import CollectorRegistry

from octavo.bench.placement.worker import FIRST_OUTPUT, WorkerSpec, config_of, info_of
from octavo.bench.router import tokenizer
from shared.process import Stop, tell, tune_threads
from worker.assemble import Parts, assemble
from worker.metrics import WorkerMetrics
from worker.plan import StepPlan, StepResult
from worker.scheduler.steptime import StepTimes, shape_of
from worker.servicer import server as grpc_server
from worker.servicer.servicer import WorkerServicer

PLANNING_SECONDS = 0.005  # at most, of the time between two steps that belongs to the second
STOP_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sleep:
    """Implements worker.plan.Pending: a step that is over at `until`, by time.monotonic."""

    until: float
    outcome: StepResult

    def result(self) -> StepResult:
        """See Pending."""
        time.sleep(max(0.0, self.until - time.monotonic()))
        return self.outcome


class Sleeper:
    """Implements worker.plan.Executor. A step's time includes its planning, as where step times are measured."""

    depth = 0

    def __init__(self, name: str, spec: WorkerSpec, seed: int):
        self._times = StepTimes(spec.parameters, measured=True)
        self._jitter = spec.jitter
        self._random = random.Random(f"{seed} {name}")
        self._next_token = FIRST_OUTPUT
        self._until = 0.0

    def execute(self, plan: StepPlan) -> Sleep:
        """See Executor."""
        seconds = self._times.predict(shape_of(plan)) * self._random.uniform(1 - self._jitter, 1 + self._jitter)
        self._until = max(self._until, time.monotonic() - PLANNING_SECONDS) + seconds
        first, count = self._next_token, len(plan.samples)
        self._next_token += count
        outcome = StepResult(tokens=range(first, first + count), logprobs=[None] * count, errors=[None] * count)
        return Sleep(until=self._until, outcome=outcome)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asleep:
    """A worker that serves at `server.address`."""

    servicer: WorkerServicer
    server: grpc_server.WorkerServer

    async def stop(self) -> None:
        """Nothing of it goes on."""
        await self.server.stop(STOP_SECONDS)
        if self.servicer.loaded is not None:
            await self.servicer.loaded.hub.aclose()


async def start(name: str, spec: WorkerSpec, seed: int = 0) -> Asleep:
    """One, on a free port of 127.0.0.1."""
    servicer, files = WorkerServicer(), tokenizer.bundle()
    server = await grpc_server.start(servicer, "127.0.0.1", 0)
    parts = Parts(
        executor=Sleeper(name, spec, seed),
        scheduler=config_of(spec),
        info=info_of(name, spec, files.digest),
        tokenizer=files,
        times=StepTimes(spec.parameters, measured=True),
    )
    metrics = WorkerMetrics.make(CollectorRegistry(), servicer.serving)
    servicer.loaded = assemble(parts, metrics=metrics, drain_seconds=STOP_SECONDS)
    return Asleep(servicer=servicer, server=server)


async def _serve(workers: int, spec: WorkerSpec, seed: int) -> None:
    stop = Stop()
    stop.install()
    started = [await start(f"w{number:03d}", spec, seed) for number in range(workers)]
    tell(event="listening", targets=[each.server.address for each in started])
    await stop.drain.wait()
    await asyncio.gather(*(each.stop() for each in started))


def main() -> int:
    """Runs until it is told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--spec", type=json.loads, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tune_threads()
    uvloop.run(_serve(arguments.workers, WorkerSpec(**arguments.spec), arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
