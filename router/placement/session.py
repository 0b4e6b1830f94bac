"""Affinity without memory: the first worker in the session's rendezvous order that is not much busier than the mean.

A session is what the caller names so, or else what begins with the same block under the same model, adapter and salt. Every router finds
the same worker, also one that has just started; a worker that comes or goes moves only its own sessions. The bound on load is that of
consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018).
"""

import math
from collections.abc import Sequence

from router.placement.view import Want, WorkerView, rendezvous

BOUND = 1.25  # times the mean of choices a worker


def _load(worker: WorkerView) -> int:
    return worker.running + worker.waiting + worker.pending.choices


def session(workers: Sequence[WorkerView], want: Want) -> str:
    """See the module."""
    key = want.session[:64] or want.key
    loads = sum(map(_load, workers)) + want.choices
    limit = math.ceil(BOUND * loads / len(workers))
    ranked = sorted(workers, key=lambda worker: (-rendezvous(key, worker.worker_id), worker.worker_id))
    fits = (worker for worker in ranked if _load(worker) + want.choices <= limit)
    return next(fits, min(ranked, key=_load)).worker_id
