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

Pricing = Callable[[WorkerView], float]


def base_cost(want: Want) -> Pricing:
    """See the module; without the adapter's part. In one piece, and what is the same for all workers is looked up once: this is done for
    every worker, for every request.
    """
    tokens, cached, outputs = want.prompt_tokens, want.cached.get, want.outputs

    def price(worker: WorkerView) -> float:
        uncached = max(1, tokens - cached(worker.worker_id, 0))  # as Want.uncached and Want.pairs have it
        own = uncached / worker.rate + worker.pair_s * (uncached * (2 * tokens - uncached) // 2)
        seconds = worker.before_s + (1.0 + AGAIN) * own + outputs * worker.decode_s
        total = worker.total_blocks
        if not total:
            return seconds
        blocks = (uncached + worker.pending.uncached) // BLOCK_SIZE
        used = min(FULL, (total - worker.free_blocks + blocks) / total)
        return seconds + PRESSURE * used / (1.0 - used)

    return price


def _pricing(workers: Sequence[WorkerView], want: Want) -> Pricing:
    base = base_cost(want)
    if not want.adapter:
        return base
    desired = frozenset(desired_set(workers, want.adapter))
    return lambda worker: base(worker) + adapter_cost(worker, want.adapter, desired)


def cost(workers: Sequence[WorkerView], want: Want) -> str:
    """See the module."""
    price = _pricing(workers, want)
    listed = shortlist(workers, want)
    prices = [price(worker) for worker in listed]
    least = min(prices)
    limit = least + max(NEAR * least, NEAR_S)
    near = [worker for worker, priced in zip(listed, prices, strict=True) if priced <= limit]
    return near[0].worker_id if len(near) == 1 else _first(near, want)


def _first(near: Sequence[WorkerView], want: Want) -> str:
    most = max(want.cached.get(worker.worker_id, 0) for worker in near)
    best = [worker for worker in near if want.cached.get(worker.worker_id, 0) == most]
    fewest = min(worker.cold + worker.pending.cold for worker in best)
    best = [worker for worker in best if worker.cold + worker.pending.cold == fewest]
    return min(best, key=lambda worker: (-rendezvous(want.key, worker.worker_id), worker.worker_id)).worker_id
