"""Which workers should have an adapter, and what it costs to use it elsewhere: pure functions of the workers' reports.

Every router that sees the same reports wants the same set, without a word between them: the first workers in the adapter's rendezvous
order, as many as its traffic needs. What nobody has asked for in a while needs fewer.
"""

import math
from collections.abc import Collection, Sequence

from router.placement.view import WorkerView, rendezvous

FILL = 0.5  # of a worker's places: what one adapter may take there before another worker should have it, too
IDLE_S = 60.0  # unused for so long, one worker is enough
FORGOTTEN_S = 600.0  # and for so long, none


def order(workers: Sequence[WorkerView], digest: bytes) -> list[WorkerView]:
    """The adapter's order of workers, whether they have it or not: an empty one can be its first."""
    key = digest[:32]
    return sorted(workers, key=lambda worker: (-rendezvous(key, worker.worker_id), worker.worker_id))


def wanted(workers: Sequence[WorkerView], digest: bytes, *, least: int = 1) -> int:
    """How many workers should have it. `least` holds while it is in use, or was lately."""
    uses = [worker.adapters[digest] for worker in workers if digest in worker.adapters]
    active = sum(use.running + use.waiting for use in uses)
    if not active and uses:
        idle = min(use.idle_s for use in uses)
        if idle >= IDLE_S:
            return 0 if idle >= FORGOTTEN_S else min(1, len(workers))
    places = sum(worker.max_running for worker in workers) / max(len(workers), 1)
    return min(len(workers), max(least, math.ceil(active / max(1.0, FILL * places))))


def desired_set(workers: Sequence[WorkerView], digest: bytes, *, least: int = 1) -> list[str]:
    """The worker_ids that should have it, first in rank first."""
    count = wanted(workers, digest, least=least)
    return [worker.worker_id for worker in order(workers, digest)[:count]]


def adapter_cost(worker: WorkerView, digest: bytes, desired: Collection[str]) -> float:
    """Seconds. Nothing where it is resident, used or not; else its load, and outside the desired set as much again: so that work spills
    over only where what it saves is more than a load, and a load there pushes nobody's adapter out without need.
    """
    use = worker.adapters.get(digest)
    if use is not None and use.ready:
        return 0.0
    load = worker.adapter_load_s
    return load if worker.worker_id in desired else 2.0 * load


def to_prefetch(workers: Sequence[WorkerView], digest: bytes, *, least: int = 1) -> str | None:
    """The one worker that should begin to load it now: the first desired one that lacks it. None where all have it."""
    by_id = {worker.worker_id: worker for worker in workers}
    missing = (name for name in desired_set(workers, digest, least=least) if digest not in by_id[name].adapters)
    return next(missing, None)
