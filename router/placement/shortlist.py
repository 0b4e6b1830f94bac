"""Of very many workers, those that are worth pricing: the ones with the most of the prefix, and some by rendezvous.

The rendezvous key is the prompt's last published hash, not its first block: prompts that begin alike, as all of one application do, look
at different workers, so that work spreads beyond a few; and a prompt that comes again looks at the same ones.
"""

import heapq
from collections.abc import Sequence

from router.placement.view import Want, WorkerView, rendezvous

SCAN_ALL = 64  # workers
AFFINE = 4
CHANCE = 8


def shortlist(workers: Sequence[WorkerView], want: Want) -> Sequence[WorkerView]:
    """All of up to SCAN_ALL workers; else at most AFFINE + CHANCE."""
    if len(workers) <= SCAN_ALL:
        return workers
    key, cached = (want.hashes[-1] if want.hashes else want.key), want.cached
    weights = {worker.worker_id: rendezvous(key, worker.worker_id) for worker in workers}
    chance = heapq.nlargest(CHANCE, workers, key=lambda worker: (weights[worker.worker_id], worker.worker_id))
    holders = [worker for worker in workers if worker.worker_id in cached]
    affine = heapq.nlargest(AFFINE, holders, key=lambda each: (cached[each.worker_id], weights[each.worker_id]))
    adapted = [worker for worker in workers if want.adapter and want.adapter in worker.adapters]
    loaded = heapq.nlargest(AFFINE, adapted, key=lambda worker: weights[worker.worker_id])
    return list({worker.worker_id: worker for worker in (*affine, *loaded, *chance)}.values())
