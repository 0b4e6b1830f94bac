"""Gives waiting requests to workers that have credit, and measures what comes of it."""

from collections import defaultdict
from collections.abc import Callable

from router.dispatch.fairqueue import FairQueue, QueueFull
from router.dispatch.flight import Flight
from router.dispatch.rate import Rate, retry_after
from router.dispatch.settings import DispatchSettings
from router.fleet.fleet import Fleet, PoolKey
from router.metrics import RouterMetrics
from router.placement import POLICIES
from shared.errors import Overloaded, Unavailable
from shared.types import AbortReason, Tenant


class Dispatcher:
    """One for all pools. An Observer of its flights; `pump` listens to the fleet."""

    def __init__(self, fleet: Fleet, *, settings: DispatchSettings, metrics: RouterMetrics, clock: Callable[[], float]):
        self._fleet = fleet
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._policy = POLICIES[settings.policy]
        self._queues: dict[PoolKey, FairQueue[Flight]] = defaultdict(self._new_queue)
        self._rates: dict[PoolKey, Rate] = defaultdict(lambda: Rate(clock))
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
        queue = self._queues[pool]
        if queue:
            self._fail_stranded(pool, queue)
            queue.serve(self._place)
        self._metrics.queued.labels(pool.model).set(len(queue))

    def _fail_stranded(self, pool: PoolKey, queue: FairQueue[Flight]) -> None:
        """End those that every worker has had already, or all if no worker is left."""
        there = {link.worker.info.worker_id for link in self._fleet.candidates(pool) if link.worker}
        for flight in queue:
            if there <= flight.tried:
                flight.fail(flight.failure or Unavailable(f"no worker serves {pool.model} now", retry_after=1.0))

    def _place(self, flight: Flight) -> bool:
        now = self._clock()
        seen = [(link.view(now), link) for link in self._fleet.candidates(flight.job.pool)]
        links = {view.worker_id: link for view, link in seen if view and view.worker_id not in flight.tried}
        views = [view for view, _ in seen if view and view.worker_id in links]
        if not views:
            return False
        chosen = self._policy(views, flight.job.want())
        flight.sent(links[chosen].submit(flight.job.tokens(now), flight), chosen)
        self._rates[flight.job.pool].note()
        return True

    # ---- Observer

    def resubmit(self, flight: Flight, reason: str) -> None:
        """See Observer. The flight goes to the head of its tenant's lane."""
        pool = flight.job.pool
        if flight.resubmits >= self._settings.max_resubmits:
            flight.fail(flight.failure or Unavailable("no worker could take this"))
            return
        flight.resubmits += 1
        self._metrics.resubmits.labels(pool.model, reason).inc()
        self._queues[pool].put_back(flight.job.tenant, flight.job.cost, flight)
        self.pump(pool)

    def emitted(self, flight: Flight, index: int, tokens: int) -> None:
        """See Observer."""
        now, model = self._clock(), flight.job.pool.model
        if not flight.token_at:
            self._metrics.ttft.labels(model).observe(now - flight.job.arrived)
        last = flight.token_at.get(index)
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
        self._queues[pool].remove(flight.job.tenant, flight)
        self._flights.discard(flight)
        model = pool.model
        metrics.in_flight.labels(model).dec()
        metrics.requests.labels(model, outcome).inc()
        metrics.e2e.labels(model).observe(self._clock() - flight.job.arrived)
        if flight.tried:
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

    def _overloaded(self, pool: PoolKey, full: QueueFull) -> Overloaded:
        wait = retry_after(full.ahead, self._rates[pool].per_second())
        return Overloaded(f"the queue is full: {full}", retry_after=wait)
