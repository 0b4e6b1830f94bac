"""Gives waiting requests to workers that have credit, and measures what comes of it."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from router.adapters.places import Places
from router.dispatch.budget import RetryBudget
from router.dispatch.fairqueue import FairQueue, QueueFull
from router.dispatch.flight import Flight
from router.dispatch.placing import Placing
from router.dispatch.rate import Rate, retry_after
from router.dispatch.returned import Probation, Returned, eligible
from router.dispatch.settings import DispatchSettings
from router.dispatch.shares import Shares
from router.fleet.fleet import Fleet, PoolKey
from router.fleet.link import WorkerLink
from router.metrics import RouterMetrics
from router.placement.view import Want
from shared.errors import Internal, OctavoError, Overloaded, Unavailable
from shared.types import AbortReason, Tenant

_LOG = logging.getLogger(__name__)

_MOVES = frozenset({"lost", "drained", "failed"})  # of what a worker had taken; all other reasons are rejections
_WAITS = frozenset({"lost", "drained", "draining"})  # another worker may come within moments
_POISON = "two workers in a row were lost while they ran this request: it is not tried again"


class Dispatcher:
    """One for all pools. An Observer of its flights; `pump` listens to the fleet."""

    def __init__(
        self,
        fleet: Fleet,
        places: Places,
        *,
        settings: DispatchSettings,
        metrics: RouterMetrics,
        clock: Callable[[], float],
    ):
        self._fleet = fleet
        self._places = places
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._placing = Placing(settings.policy, fleet.index)
        self._queues: dict[PoolKey, FairQueue[Flight]] = defaultdict(self._new_queue)
        self._rates: dict[PoolKey, Rate] = defaultdict(lambda: Rate(clock))
        self._shares: dict[PoolKey, Shares] = defaultdict(Shares)
        self._returned: dict[PoolKey, Returned] = defaultdict(Returned)
        self._budgets: dict[PoolKey, RetryBudget] = defaultdict(self._new_budget)
        self._probation = Probation()
        self._flights: set[Flight] = set()
        self._pumping = False
        self._again: set[PoolKey] = set()

    @property
    def flights(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    def check_room(self, pool: PoolKey, tenant: Tenant) -> None:
        """Raises Overloaded where a request of `tenant` would find the queue full: before any work is done for it."""
        try:
            self._queues[pool].check_room(tenant)
        except QueueFull as full:
            raise self._overloaded(pool, full) from full

    def waiting(self, tenant: Tenant) -> int:
        """How many of its requests no worker has taken yet, over all pools."""
        return sum(queue.waiting(tenant) for queue in self._queues.values())

    def check_any_room(self, tenant: Tenant, ahead: int) -> None:
        """Raises Overloaded where `check_room` would for every pool that there is, once `ahead` more of the tenant's have come."""
        full = {pool: why for pool, queue in self._queues.items() if (why := queue.why_full(tenant, ahead)) is not None}
        if full and all(pool.key in full for pool in self._fleet.pools()):
            raise self._overloaded(*next(iter(full.items())))

    def submit(self, flight: Flight) -> None:
        """Take a new flight. Raises Overloaded; any later trouble is the flight's."""
        pool = flight.job.pool
        try:
            bounced = self._queues[pool].add(flight.job.tenant, flight.job.cost, flight)
        except QueueFull as full:
            raise self._overloaded(pool, full) from full
        if bounced is not None:
            bounced.fail(self._overloaded(pool, QueueFull(len(self._queues[pool]))))
        self._flights.add(flight)
        self._metrics.in_flight.labels(pool.model).inc()
        self.pump(pool)
        if flight.job.adapter is not None:
            self._places.expect(self._fleet.candidates(pool), flight.job.adapter, flight.worker_id)

    def cancel_all(self, reason: str) -> None:
        """The router stops: end every flight."""
        for flight in list(self._flights):
            flight.fail(Unavailable(reason))

    def pump(self, pool: PoolKey) -> None:
        """Place what can be placed now, and fail what nobody can take. Calls from inside are done at the end of the outer one."""
        self._again.add(pool)
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._again:
                self._pump(self._again.pop())
        finally:
            self._pumping = False

    def _pump(self, pool: PoolKey) -> None:
        queue, returned = self._queues[pool], self._returned[pool]
        for flight in returned:
            self._place_again(flight)
        if queue:
            self._fail_stranded(pool, queue)
            queue.serve(self._place)
        self._metrics.queued.labels(pool.model).set(len(queue) + len(returned))

    def _fail_stranded(self, pool: PoolKey, queue: FairQueue[Flight]) -> None:
        """End all that wait if no worker is left."""
        if not self._fleet.serves(pool):
            for flight in queue:
                flight.fail(Unavailable(f"no worker serves {pool.model} now", retry_after=1.0))

    def _place(self, flight: Flight) -> bool:
        links = self._places.holders(self._fleet.candidates(flight.job.pool), flight.job.adapter)
        if self._shares[flight.job.pool].has_its_share(flight.job.tenant):
            now = self._clock()
            links = [link for link in links if not link.held_back(now)]
        return self._place_on(flight, links)

    def _place_on(self, flight: Flight, candidates: list[WorkerLink]) -> bool:
        now = self._clock()
        seen = [(link.view(now), link) for link in candidates]
        links = {view.worker_id: link for view, link in seen if view and self._probation.admits(view.worker_id, flight)}
        views = [view for view, _ in seen if view and view.worker_id in links]
        if not views:
            return False
        try:
            chosen, want = self._placing.choose(views, flight.job.want(), max_tokens=flight.job.sampling.max_tokens)
            self._send(flight, links[chosen], want)
        except Exception:  # noqa: BLE001 - what cannot be placed or sent ends alone: a stream's frames and other requests are behind it
            _LOG.exception("a request cannot be sent")
            # Not now, while a queue is served.
            asyncio.get_running_loop().call_soon(flight.fail, Internal("the router failed on this request"))
        return True

    def _send(self, flight: Flight, link: WorkerLink, want: Want) -> None:
        assert link.worker is not None
        info = link.worker.info
        self._rates[flight.job.pool].note()
        if not flight.dispatched:
            self._budgets[flight.job.pool].earn()
            self._shares[flight.job.pool].sent(flight.job.tenant)
        request = flight.token_request(self._clock(), info.worker_id, info.numerics_id)
        ticket = link.submit(request, flight, want.share(info.worker_id))
        self._placing.sent(flight, link.member, want)
        flight.sent(ticket, info.worker_id, info.numerics_id)
        self._probation.sent(info.worker_id, flight)

    # ---- what came back

    def _place_again(self, flight: Flight) -> None:
        """Place a flight that came back; where nobody can take it, it waits a while for one who can."""
        pool = flight.job.pool
        there = self._places.holders(self._fleet.candidates(pool), flight.job.adapter)
        candidates = eligible(flight, there, exact=self._settings.resume == "exact")
        if not candidates:
            self._strand(flight)
        elif self._place_on(flight, candidates):
            self._returned[pool].discard(flight)
        else:
            flight.be_patient(None)

    def _strand(self, flight: Flight) -> None:
        wait = self._settings.resume_wait
        if flight.back_because not in _WAITS or wait <= 0:
            self._give_up(flight)
        elif flight.patience is None:
            flight.be_patient(asyncio.get_running_loop().call_later(wait, self._give_up, flight))

    def _give_up(self, flight: Flight) -> None:
        flight.fail(flight.failure or Unavailable("no worker could take this", retry_after=1.0))

    # ---- Observer

    def resubmit(self, flight: Flight, reason: str) -> None:
        """See Observer. The flight is placed before those that have had no worker yet."""
        self._placing.over(flight)
        pool = flight.job.pool
        refused = self._refused(flight, reason)
        if refused is not None:
            flight.fail(refused)
            return
        flight.resubmits += 1
        flight.back_because = reason
        self._metrics.resubmits.labels(pool.model, reason).inc()
        self._returned[pool].add(flight)
        self.pump(pool)

    def _refused(self, flight: Flight, reason: str) -> OctavoError | None:
        """Why it is not given to another worker; None where it is."""
        failure = flight.failure or Unavailable("no worker could take this", retry_after=1.0)
        if flight.trail.poison:
            return failure if reason == "failed" else Internal(_POISON, code="poison_request")
        if flight.begun or reason in _MOVES:
            return failure if flight.resubmits >= self._settings.max_moves else None
        if flight.resubmits >= self._settings.max_resubmits or not self._budgets[flight.job.pool].spend():
            return failure
        return None

    def emitted(self, flight: Flight, index: int, tokens: int) -> None:
        """See Observer."""
        now, model = self._clock(), flight.job.pool.model
        self._placing.begun(flight)
        if not flight.token_at:
            self._metrics.ttft.labels(model).observe(now - flight.job.arrived)
        last = flight.token_at.get(index)
        if flight.back_because and last is not None:
            self._metrics.resumed.labels(model, "inexact" if flight.inexact else "exact").inc()
            self._metrics.resume_gap.labels(model).observe(now - last)
            flight.back_because = ""
        if last is not None and tokens:
            self._metrics.itl.labels(model).observe((now - last) / tokens)
        flight.token_at[index] = now

    def aborted(self, reason: AbortReason, choices: int) -> None:
        """See Observer."""
        if choices:
            self._metrics.aborts.labels(reason.value).inc(choices)

    def ended(self, flight: Flight, outcome: str) -> None:
        """See Observer."""
        pool, metrics, usage = flight.job.pool, self._metrics, flight.usage()
        if flight.dispatched:
            self._shares[pool].ended(flight.job.tenant)
        else:
            self._queues[pool].remove(flight.job.tenant, flight)
        self._returned[pool].discard(flight)
        self._probation.ended(flight)
        self._placing.ended(flight, [output.counted for output in flight.outputs] if outcome == "ok" else ())
        self._flights.discard(flight)
        model = pool.model
        metrics.in_flight.labels(model).dec()
        metrics.requests.labels(model, outcome).inc()
        metrics.e2e.labels(model).observe(self._clock() - flight.job.arrived)
        if flight.dispatched:
            metrics.prompt_tokens.labels(model).inc(usage.prompt_tokens)
        metrics.output_tokens.labels(model).inc(usage.completion_tokens)
        metrics.cached_tokens.labels(model).inc(usage.cached_tokens)
        metrics.overshoot_tokens.labels(model).inc(flight.overshoot)

    def _new_queue(self) -> FairQueue[Flight]:
        limits = self._settings
        return FairQueue(
            limit=limits.max_queued,
            tenant_limit=limits.max_queued_per_tenant,
            clock=self._clock,
        )

    def _new_budget(self) -> RetryBudget:
        return RetryBudget(share=self._settings.retry_share, burst=self._settings.retry_burst)

    def _overloaded(self, pool: PoolKey, full: QueueFull) -> Overloaded:
        wait = retry_after(full.ahead, self._rates[pool].per_second())
        return Overloaded(f"the queue is full: {full}", retry_after=wait)
