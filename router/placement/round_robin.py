"""The worker that this router sent the fewest requests. It looks at nothing else: the yardstick for policies that do."""

from collections.abc import Sequence

from router.placement.view import Want, WorkerView


def round_robin(workers: Sequence[WorkerView], want: Want) -> str:  # noqa: ARG001 (it looks at no request)
    """See the module."""
    return min(workers, key=lambda worker: (worker.dispatched, worker.worker_id)).worker_id
