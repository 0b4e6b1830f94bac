"""One step is three calls: plan it, start it, retire the oldest. One thread calls everything here."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.types import AbortReason, RejectCode, TokenRequest
from worker.events import EngineStats, StepOutput
from worker.plan import Executor, Pending, StepPlan, StepResult
from worker.scheduler.scheduler import Scheduler

_LOG = logging.getLogger("octavo.engine")
STEP_FAILED = "the step that computed this failed"  # callers hear no more of it: what failed is in the log


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """What a retired step did. `seconds` count from its planning, or from the end of the step before it where they overlapped."""

    seconds: float
    computed: int  # positions
    sampled: int  # tokens
    failed: bool


class _Flight(NamedTuple):
    plan: StepPlan
    pending: Pending
    planned_at: float


class _Failed:
    """A step that did not even start. It fails when its turn to retire comes, so that steps retire in order."""

    def __init__(self, error: Exception):
        self._error = error

    def result(self) -> StepResult:
        """Raises what made the start fail."""
        raise self._error


class Engine:
    """`last_step` tells of the step that the last `step()` retired, if it did; `stalled` is whether it could neither plan nor retire.

    `predicted_s` is how long the step in flight (the longest of them, or the last one) was expected to take. It is set before the step
    runs, and may be read by any thread at any time.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float] = time.monotonic):
        self.last_step: StepFacts | None = None
        self.stalled = False
        self.predicted_s = scheduler.predicted_step_s
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._flights: deque[_Flight] = deque()
        self._retired_at = clock()

    @property
    def has_work(self) -> bool:
        """Whether any sequence runs or waits, or a step is in flight."""
        return bool(self._flights) or self._scheduler.has_work

    def step(self) -> StepOutput:
        """Plan and start a step if there is anything to compute; retire the oldest once more are in flight than the executor's depth."""
        plan = self._scheduler.schedule(self._clock())
        if plan is not None:
            self.predicted_s = self._scheduler.predicted_step_s
            self._flights.append(self._start(plan))
        self.last_step = None
        self.stalled = not self._flights
        if self._flights and (plan is None or len(self._flights) > self._executor.depth):
            return self._retire(self._flights.popleft())
        return self._scheduler.take_output()

    def _start(self, plan: StepPlan) -> _Flight:
        planned_at = self._clock()
        try:
            pending = self._executor.execute(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this step's requests and nothing else
            pending = _Failed(error)
        return _Flight(plan, pending, planned_at)

    def _retire(self, flight: _Flight) -> StepOutput:
        try:
            result = flight.pending.result()
        except Exception:  # noqa: BLE001 - the step's requests end with it, the engine lives
            _LOG.exception("step %d failed", flight.plan.step)
            self._note(flight, failed=True)
            return self._scheduler.fail(flight.plan, STEP_FAILED, self._retired_at)
        self._note(flight, failed=False)
        return self._scheduler.apply(flight.plan, result, self._retired_at)

    def _note(self, flight: _Flight, *, failed: bool) -> None:
        now, before = self._clock(), self._retired_at
        self._retired_at = now
        self.last_step = StepFacts(
            seconds=now - max(flight.planned_at, before),
            computed=sum(chunk.length for chunk in flight.plan.chunks),
            sampled=0 if failed else len(flight.plan.samples),
            failed=failed,
        )

    def submit(self, stream: int, request: TokenRequest) -> StepOutput:
        """Queue a request, or reject it."""
        return self._scheduler.submit(stream, request, self._clock())

    def abort(self, stream: int, handles: Sequence[int], reason: AbortReason) -> StepOutput:
        """End these choices; unknown ones are ignored."""
        return self._scheduler.abort(stream, handles, reason, self._clock())

    def drop_stream(self, stream: int) -> StepOutput:
        """End all choices of a stream, untold. The output tells of the cache alone."""
        self._scheduler.drop_stream(stream, self._clock())
        return self._scheduler.take_output()

    def adapter_loaded(self, slot: int) -> StepOutput:
        """A device slot holds what was ordered."""
        return self._scheduler.adapter_loaded(slot, self._clock())

    def adapter_failed(self, slot: int, code: RejectCode, message: str) -> StepOutput:
        """What was ordered for a device slot cannot be had; those who wait for it are told."""
        return self._scheduler.adapter_failed(slot, code, message, self._clock())

    def forget_adapter(self, digest: bytes) -> StepOutput:
        """No name means it any more; its slot is cleared when nothing uses it."""
        return self._scheduler.forget_adapter(digest)

    def remember_adapter(self, digest: bytes) -> None:
        """A name means it again."""
        self._scheduler.remember_adapter(digest)

    def pin_adapter(self, digest: bytes, pinned: bool) -> None:
        """Keep its device slot from others, or not any more."""
        self._scheduler.pin_adapter(digest, pinned)

    def flush_cache(self) -> tuple[int, StepOutput]:
        """Forget cached blocks that no sequence uses: their number, and what that changed."""
        return self._scheduler.flush_cache(), self._scheduler.take_output()

    def snapshot(self) -> tuple[tuple[bytes, ...], StepOutput]:
        """Every published prefix hash, and the changes up to this moment that were not told yet: the view holds them."""
        output = self._scheduler.take_output()
        return self._scheduler.published(), output

    def stats(self) -> EngineStats:
        """A consistent view."""
        return self._scheduler.stats(self._clock())

    def check_integrity(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        self._scheduler.check_integrity()
