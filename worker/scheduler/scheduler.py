"""The scheduler's face: requests come in, plans go out, results come back. Used by one thread at a time; keeps no clock and no torch.

At depth d up to d steps may be in flight when the next is planned. Steps are applied, or failed, in the order in which they were planned.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from shared.types import AbortReason, FinishReason, RejectCode, TokenRequest
from worker.events import EngineStats, StepOutput
from worker.kvcache.cache import KvCache
from worker.plan import StepPlan, StepResult
from worker.scheduler.adapters import SlotLoader
from worker.scheduler.admission import Admission
from worker.scheduler.builder import Flight, StepBuilder
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.estimates import Estimates
from worker.scheduler.fairness import Accounts
from worker.scheduler.finish import End
from worker.scheduler.guard import Guard
from worker.scheduler.lifecycle import Lifecycle
from worker.scheduler.outbox import Outbox
from worker.scheduler.planner import Planner
from worker.scheduler.queue import WaitingQueue
from worker.scheduler.registry import Registry
from worker.scheduler.residents import Residents
from worker.scheduler.retirement import Retirement
from worker.scheduler.steptime import StepTimes
from worker.sequence import Phase

_ABORTS = {
    AbortReason.CLIENT: FinishReason.ABORTED,
    AbortReason.STOPPED: FinishReason.STOP,
    AbortReason.DEADLINE: FinishReason.DEADLINE,
}


class Scheduler:
    """`now` is a time in seconds of one monotonic clock, the same for all calls; `started_at` is when it began to be used.

    Every call that returns a StepOutput gives all that there is to tell by then, of whatever call it came. `times` learns from every
    step that is applied; without one, the first step tells all there is to know.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        *,
        started_at: float | None = None,
        times: StepTimes | None = None,
        loader: SlotLoader | None = None,
    ) -> None:
        self._config = config
        self._registry = Registry()
        self._outbox = Outbox()
        self._accounts = Accounts()
        self._queue = WaitingQueue(starve_s=config.starve_s)
        self._cache = KvCache(num_blocks, prefix_cache=config.prefix_cache)
        self._residents = Residents(cache=self._cache, config=config, loader=loader)
        self._times = StepTimes() if times is None else times
        self._guard = Guard(self._times, config)
        self._estimates = Estimates(
            self._times, step_tokens=config.step_tokens, output_tokens=config.first_output_tokens
        )
        self._predicted_s = self._estimates.full_step_s
        self._lifecycle = self._make_lifecycle()
        self._planner = self._make_planner()
        self._retirement = Retirement(residents=self._residents, lifecycle=self._lifecycle, outbox=self._outbox)
        self._flights: deque[Flight] = deque()
        self._next_step = 0
        self._progress_at = time.monotonic() if started_at is None else started_at

    def _make_lifecycle(self) -> Lifecycle:
        return Lifecycle(
            config=self._config,
            queue=self._queue,
            residents=self._residents,
            accounts=self._accounts,
            registry=self._registry,
            outbox=self._outbox,
            estimates=self._estimates,
        )

    def _make_planner(self) -> Planner:
        admission = Admission(
            config=self._config,
            queue=self._queue,
            residents=self._residents,
            lifecycle=self._lifecycle,
            accounts=self._accounts,
        )
        return Planner(
            config=self._config,
            residents=self._residents,
            lifecycle=self._lifecycle,
            accounts=self._accounts,
            admission=admission,
        )

    def submit(self, stream: int, request: TokenRequest, now: float) -> StepOutput:
        """Queue a request. It may be refused: INVALID names the parameter, TOO_LONG says what it needs and what there is; when too many
        wait, the newest of the tenant with the largest weighted backlog is rejected as QUEUE_FULL, whichever stream it came from."""
        if not len(self._registry):
            self._progress_at = max(self._progress_at, now)  # no step was due while nothing was to do
        self._lifecycle.submit(stream, request, now)
        self._expire(now)
        return self.take_output()

    def abort(self, stream: int, handles: Sequence[int], reason: AbortReason, now: float) -> StepOutput:
        """End choices in whatever phase; handles that are not live are passed over."""
        self._expire(now)
        for handle in handles:
            seq = self._registry.find(stream, handle)
            if seq is not None:
                self._lifecycle.end(seq, End(_ABORTS[reason]))
        return self.take_output()

    def drop_stream(self, stream: int, now: float) -> None:
        """End all of a stream's choices and tell nobody; what was to be told is dropped too."""
        for seq in reversed(self._registry.of_stream(stream)):  # last ones first, so that no prefill is handed over
            self._lifecycle.discard(seq)
        self._outbox.drop_stream(stream)

    def schedule(self, now: float) -> StepPlan | None:
        """The next step; None where there is nothing to compute now, because all is done or waits for steps in flight.

        What this call ended (deadlines) is told by the next call that returns a StepOutput, so call `take_output` after None.
        Raises RuntimeError where more steps are in flight than the configured depth.
        """
        if len(self._flights) > self._config.depth:
            raise RuntimeError(f"{len(self._flights)} steps are in flight, and depth is {self._config.depth}")
        self._expire(now)
        self._accounts.look()
        builder = StepBuilder(
            step=self._next_step,
            budget=self._config.step_tokens,
            residents=self._residents,
            guard=self._guard,
            floor=self._config.prefill_floor,
        )
        self._planner.fill(builder, now)
        if builder.empty:
            if not self._flights and self._residents.adapters.loading:
                self._progress_at = now  # no step was due: what could be computed waits for its adapter
            return None
        self._next_step += 1
        self._flights.append(builder.flight(now, self._times.predict(builder.shape)))
        self._predicted_s = max(flight.predicted_s for flight in self._flights)
        return builder.plan()

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> StepOutput:
        """A step has retired. Raises ValueError, and changes nothing, where it is not the oldest in flight or the result not its own."""
        flight = self._oldest(plan)
        self._retirement.apply(flight, result)
        self._flights.popleft()
        self._estimates.step(flight.shape, planned_at=flight.planned_at, retired_at=now)
        self._progress_at = now
        self._expire(now)
        return self.take_output()

    def fail(self, plan: StepPlan, message: str, now: float) -> StepOutput:
        """A step has failed as a whole: all that it computed something for end in ERROR, everything else lives."""
        self._retirement.fail(self._oldest(plan), message)
        self._flights.popleft()
        self._progress_at = now
        self._expire(now)
        return self.take_output()

    @property
    def predicted_step_s(self) -> float:
        """The longest of the steps in flight, or the last that was planned, by prediction; before any, a full one."""
        return self._predicted_s

    def _oldest(self, plan: StepPlan) -> Flight:
        if not self._flights or self._flights[0].step != plan.step:
            raise ValueError(f"step {plan.step} is not the oldest in flight")
        return self._flights[0]

    def _expire(self, now: float) -> None:
        self._residents.adapters.now = now
        self._accounts.now = now
        for seq in reversed(self._registry.expired(now)):
            self._lifecycle.end(seq, End(FinishReason.DEADLINE))

    def adapter_loaded(self, slot: int, now: float) -> StepOutput:
        """The loader has brought what was ordered into the device slot."""
        self._expire(now)
        self._residents.adapters.loaded(slot, now)
        return self.take_output()

    def adapter_failed(self, slot: int, code: RejectCode, message: str, now: float) -> StepOutput:
        """The loader cannot bring what was ordered: whoever waits for it is told."""
        self._expire(now)
        self._lifecycle.refuse_adapter(self._residents.adapters.failed(slot), code, message)
        return self.take_output()

    def forget_adapter(self, digest: bytes) -> StepOutput:
        """No name means it any more: its device slot is cleared when nothing that is here now uses it."""
        self._residents.adapters.forget(digest)
        return self.take_output()

    def remember_adapter(self, digest: bytes) -> None:
        """A name means it again."""
        self._residents.adapters.remember(digest)

    def pin_adapter(self, digest: bytes, pinned: bool) -> None:
        """Keep its device slot from others when it has one, or not any more."""
        self._residents.adapters.pin(digest, pinned)

    def take_output(self) -> StepOutput:
        """All that there is to tell and has not been told."""
        self._residents.adapters.sweep()
        return self._outbox.take(self._cache.take_changes())

    def flush_cache(self) -> int:
        """Forget every cached block that no sequence uses; returns how many. What routers must hear of it comes with the next output."""
        return self._cache.flush()

    def published(self) -> tuple[bytes, ...]:
        """All published hashes, as of the changes told so far and those still to be told."""
        return self._cache.published()

    @property
    def has_work(self) -> bool:
        """Whether any choice runs or waits."""
        return len(self._registry) > 0

    def stats(self, now: float) -> EngineStats:
        """How it stands."""
        return EngineStats(
            step_seq=self._residents.retired,
            running=len(self._residents),
            waiting=len(self._queue),
            waiting_uncached_tokens=self._queue.uncached_tokens + self._residents.prefill_tokens,
            context_tokens=sum(len(seq.tokens) for seq in self._residents.running),
            free_blocks=self._cache.available,
            total_blocks=self._cache.num_blocks,
            cached_blocks=self._cache.cached,
            preemptions=self._lifecycle.preemptions,
            last_step_at=self._progress_at,
            prefill_tokens_per_s=self._estimates.prefill_tokens_per_s,
            sequence_s=self._times.sequence_s(self._config.max_running),
            context_token_s=self._times.context_token_s,
            cold_admissions=self._lifecycle.cold_admissions,
            waiting_pairs=self._queue.uncached_pairs + self._residents.prefill_pairs,
            pair_s=self._times.pair_s,
            adapters=self._residents.adapters.stats(),
        )

    def available_blocks(self) -> Iterable[int]:
        """The blocks that the next plan may give new content."""
        return self._cache.available_blocks()

    def check_integrity(self) -> None:
        """Raises AssertionError naming the invariant that does not hold. Costs O(everything): for tests, and when idle."""
        live = self._registry.all()
        self._residents.check_integrity()
        self._residents.adapters.check_integrity(live)
        self._queue.check_integrity([seq for seq in live if seq.phase is Phase.WAITING])
        self._lifecycle.backlog.check_integrity()
        places = sum(1 for seq in live if seq.phase in (Phase.FORKING, Phase.RUNNING))
        assert places == len(self._residents), "a resident is not live, or a live one nowhere"
        assert all(seq.phase not in (Phase.NEW, Phase.ENDED) for seq in live), "a live sequence has ended"
        unknown = Counter(seq for flight in self._flights for seq in flight.rows)
        assert all(seq.unknown == unknown[seq] for seq in live), "unknown tokens differ from the steps in flight"
        accounts = Counter(seq.request.account for seq in live)
        assert all(account.live == accounts[account] for account in self._accounts.active), "an account's count is off"
        assert len(accounts) == len(list(self._accounts.active)), "an active account without a sequence"
        for account in self._accounts.active:
            used = sum(1 for seq in live if seq.request.account is account and seq.slot >= 0)
            assert account.slots == used, f"tenant {account.tenant_id} has {used} slots, {account.slots} counted"
