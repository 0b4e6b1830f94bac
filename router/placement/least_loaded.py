"""The least loaded worker: choices there, running, waiting and on their way, as a share of what it runs at once.

Ties go to the worker that this router sent the fewest requests, then by rendezvous: idle workers take turns, and nothing is random.
"""

from collections.abc import Sequence

from router.placement.view import Want, WorkerView, rendezvous


def _load(worker: WorkerView) -> float:
    return (worker.running + worker.waiting + worker.pending.choices) / max(worker.max_running, 1)


def least_loaded(workers: Sequence[WorkerView], want: Want) -> str:
    """See the module."""

    def rank(worker: WorkerView) -> tuple[float, int, int]:
        return _load(worker), worker.dispatched, -rendezvous(want.key, worker.worker_id)

    return min(workers, key=rank).worker_id
