"""The seconds that placing a request on a worker costs: its own time to the first token, and what it and the others lose by each other.

    cost = (waiting_uncached + unacked + uncached(r)) / prefill_rate                     until the first token
         + pair_s * (waiting_pairs + unacked pairs + pairs(r))                           of which attention over what is long
         + AGAIN * (what r itself adds to these two)                                     what others will compute again for it
         + outputs(r) * (b * (running + waiting + unacked) + c * context)                what the others' decodes add to its own
         + PRESSURE * k / (1 - k)                                                        what a full cache costs in evictions, preemptions
         + adapter_cost

k is the share of the blocks that is in use, this request's included. Everything is in seconds by the worker's own step model, so that no
weight has to be tuned to a machine. AGAIN is tuned to a trace (octavo bench placement): what is computed here though another worker has it
takes the place of what that worker need not have kept twice; without it work moves to wherever it starts a little sooner, and the fleet's
caches hold copies.

Costs that differ by less than the model's error are equal: then the worker with the most of the prefix is chosen, then the one with the
fewest cold admissions by its own count, then rendezvous of the first block. Nothing is random: the same view gives the same decision.
"""

from collections.abc import Callable, Sequence

from router.placement.adapters import adapter_cost, desired_set
from router.placement.shortlist import shortlist
from router.placement.view import Want, WorkerView, rendezvous
from shared.hashing import BLOCK_SIZE

PRESSURE = 0.15  # seconds
AGAIN = 3.0  # times what a request computes
FULL = 0.98  # the most that a share in use counts as
NEAR = 0.05  # costs within this share of the least are equal,
NEAR_S = 0.002  # or within so many seconds
ASSUMED_RATE = 1_000.0  # tokens a second of a worker that has measured nothing


def pressure(worker: WorkerView, blocks: int) -> float:
    """Seconds for a cache in which `blocks` more are used."""
    if not worker.total_blocks:
        return 0.0
    used = min(FULL, (worker.total_blocks - worker.free_blocks + blocks) / worker.total_blocks)
    return PRESSURE * used / (1.0 - used)


def base_cost(worker: WorkerView, want: Want) -> float:
    """See the module; without the adapter's part."""
    pending, uncached = worker.pending, want.uncached(worker.worker_id)
    rate, pair = worker.prefill_rate or ASSUMED_RATE, worker.pair_s
    before = (worker.uncached + pending.uncached) / rate + pair * (worker.pairs + pending.pairs)
    own = uncached / rate + pair * want.pairs(worker.worker_id)
    prefill = before + (1.0 + AGAIN) * own
    sequences = worker.running + worker.waiting + pending.choices
    decode = want.outputs * (worker.sequence_s * sequences + worker.context_s * (worker.context + pending.context))
    return prefill + decode + pressure(worker, (uncached + pending.uncached) // BLOCK_SIZE)


def _pricing(workers: Sequence[WorkerView], want: Want) -> Callable[[WorkerView], float]:
    if not want.adapter:
        return lambda worker: base_cost(worker, want)
    desired = frozenset(desired_set(workers, want.adapter))
    return lambda worker: base_cost(worker, want) + adapter_cost(worker, want.adapter, desired)


def cost(workers: Sequence[WorkerView], want: Want) -> str:
    """See the module."""
    price = _pricing(workers, want)
    prices = [(price(worker), worker) for worker in shortlist(workers, want)]
    least = min(prices, key=lambda priced: priced[0])[0]
    limit = least + max(NEAR * least, NEAR_S)
    near = [worker for priced, worker in prices if priced <= limit]
    return near[0].worker_id if len(near) == 1 else _first(near, want)


def _first(near: Sequence[WorkerView], want: Want) -> str:
    most = max(want.cached.get(worker.worker_id, 0) for worker in near)
    best = [worker for worker in near if want.cached.get(worker.worker_id, 0) == most]
    fewest = min(worker.cold + worker.pending.cold for worker in best)
    best = [worker for worker in best if worker.cold + worker.pending.cold == fewest]
    return min(best, key=lambda worker: (-rendezvous(want.key, worker.worker_id), worker.worker_id)).worker_id
