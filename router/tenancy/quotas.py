"""Admission over a store: one round trip before a request is dispatched, one at its end, and one every two seconds for all that run."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from router.request import Usage
from router.tenancy.admission import Estimate, Meter, Reservation
from router.tenancy.caller import Caller
from router.tenancy.rates import Rates
from router.tenancy.records import Limits
from router.tenancy.refusals import Refusals
from router.tenancy.store import Books, Granted, Refused, Renewal, Settlement, Wanted
from shared.errors import InvalidRequest, OctavoError, RateLimited, Unavailable

RENEW_SECONDS = 2.0
CLOSED_SECONDS = 5.0  # how long an answer's end waits for a store that does not take its settlement
_AGAIN_SECONDS = 0.5
_LATE_SECONDS = 3.0  # a beat that comes later than so: the store was locked, the machine slept, or its clock was set
_PATIENCE_SECONDS = 10.0  # in which other routers, which were held up as well, renew theirs
_LAST_TRIES = 4  # of a router that closes

_LOG = logging.getLogger(__name__)

_QUANTITIES = {
    "requests_per_minute": "requests per minute",
    "prompt_tokens_per_minute": "prompt tokens per minute",
    "output_tokens_per_minute": "output tokens per minute",
    "concurrent_requests": "requests at once",
    "resident_adapters": "resident adapters",
}


def _refusal(refused: Refused, limits: Limits) -> RateLimited:
    allowed = getattr(limits, refused.limit)
    message = f"the limit of {allowed} {_QUANTITIES[refused.limit]} is reached"
    return RateLimited(
        f"{message}; try again in {refused.retry_after:.3f} s",
        retry_after=refused.retry_after,
        rates=refused.rates.headers(),
    )


def _check_possible(limits: Limits, prompt_tokens: int) -> None:
    most = limits.prompt_tokens_per_minute
    if most is not None and prompt_tokens > most:
        message = f"the prompt has {prompt_tokens} tokens; this tenant may send {most} per minute"
        raise InvalidRequest(message, param="prompt", code="prompt_exceeds_rate_limit")


class Quotas:
    """Implements Admission. Start it, and close it before the store. `wall` is the clock by which reservations expire, in seconds."""

    def __init__(
        self,
        store: Books,
        *,
        renew_seconds: float = RENEW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        self._store = store
        self._seconds = renew_seconds
        self._refusals = Refusals(clock)
        self._live: dict[str, _Held] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._wall = wall
        self._beaten = self._patient_until = wall()

    def start(self) -> None:
        """Renews what lives and sweeps what does not, until closed."""
        self._task = asyncio.create_task(self._keep_beating())

    async def reserve(self, caller: Caller, estimate: Estimate) -> Reservation:
        """See Admission."""
        _check_possible(caller.limits, estimate.prompt_tokens)
        wanted = Wanted(
            charge_id=estimate.charge_id,
            tenant=caller.tenant.id,
            key=caller.key,
            model=estimate.model,
            adapter=estimate.adapter,
            limits=caller.limits,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
        )
        outcome = await self._ask(wanted)
        if isinstance(outcome, Refused):
            self._refusals.note(wanted.tenant, outcome)
            raise _refusal(outcome, caller.limits)
        self._refusals.began(wanted.tenant)
        held = self._live[wanted.charge_id] = _Held(self, wanted, outcome.rates)
        return held

    def check(self, caller: Caller) -> None:
        """See Admission."""
        stands = self._refusals.standing(caller.tenant.id, caller.limits)
        if stands is not None:
            raise _refusal(stands, caller.limits)

    async def _ask(self, wanted: Wanted) -> Granted | Refused:
        """Whoever leaves meanwhile has reserved nothing."""
        asked = asyncio.ensure_future(self._store.reserve(wanted))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            self.run(self._undo(asked, wanted.charge_id))
            raise

    async def _undo(self, asked: "asyncio.Future[Granted | Refused]", charge_id: str) -> None:
        if isinstance(await asked, Granted):
            await self._end(charge_id, None)

    def run(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[None]":
        """In the background, until the store has taken it."""
        task = asyncio.create_task(self._logged(work))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _logged(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except OctavoError as error:
            _LOG.error("the store did not take a reservation's end: %s", error.message)
        except Exception:  # noqa: BLE001 - nobody else hears of it
            _LOG.exception("the store did not take a reservation's end")

    def end(self, charge_id: str, tenant: str, settlement: Settlement | None) -> "asyncio.Task[None]":
        """Settle it, or abandon it."""
        self._refusals.ended(tenant)
        return self.run(self._end(charge_id, settlement))

    async def _end(self, charge_id: str, settlement: Settlement | None) -> None:
        """Tries until the store takes it, or this router closes. Until then it is renewed with all that it used, as if it ran: nobody else
        takes it for lost."""
        try:
            ours = await self._taken(charge_id, settlement)
        finally:
            self._live.pop(charge_id, None)
        if not ours:
            _LOG.warning("%s was settled already: this router was taken for lost", charge_id)

    async def _taken(self, charge_id: str, settlement: Settlement | None) -> bool:
        """Whether it was this call that settled or abandoned it. Raises Unavailable where the store fails to the end."""
        failures = 0
        while True:
            try:
                return await (self._store.settle(settlement) if settlement else self._store.abandon(charge_id))
            except Unavailable:
                failures += 1
                if self._closed and failures >= _LAST_TRIES:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.beat()
            except OctavoError as error:
                _LOG.error("reservations are not renewed: %s", error.message)
            except Exception:  # noqa: BLE001 - whatever it was, the next beat may do
                _LOG.exception("reservations are not renewed")

    async def beat(self) -> None:
        """Renews all that live here, then settles what other routers lost: not while they may have been kept from renewing theirs."""
        await self._store.renew(
            [held.renewal() for held in self._live.values()]
        )  # none, too: it tells whether the store stood still
        now = self._wall()
        if now - self._beaten > self._seconds + _LATE_SECONDS:
            self._patient_until = now + _PATIENCE_SECONDS
        self._beaten = now
        if now >= self._patient_until:
            await self._store.sweep()

    def used(self) -> int:
        """Output tokens so far of all that lives here, or whose end the store has not taken yet."""
        return sum(held.renewal().output_tokens for held in self._live.values())

    async def aclose(self) -> None:
        """See Admission."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)


def _nothing() -> Usage:
    return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=0)


class _Held:
    """Implements Reservation."""

    def __init__(self, quotas: Quotas, wanted: Wanted, rates: Rates):
        self._quotas = quotas
        self._id = wanted.charge_id
        self._tenant = wanted.tenant
        self._meter: Meter = _nothing
        self._ending: asyncio.Task[None] | None = None
        self.rates: Rates | None = rates

    def follow(self, meter: Meter) -> None:
        """See Reservation."""
        self._meter = meter

    def renewal(self) -> Renewal:
        """What was used so far."""
        usage = self._meter()
        return Renewal(charge_id=self._id, output_tokens=usage.completion_tokens, cached_tokens=usage.cached_tokens)

    def settle(self, usage: Usage, finish: str, worker: str) -> None:
        """See Reservation."""
        settlement = Settlement(
            charge_id=self._id,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            finish=finish,
            worker=worker,
        )
        self._close(settlement)

    def abandon(self) -> None:
        """See Reservation."""
        self._close(None)

    def _close(self, settlement: Settlement | None) -> None:
        if self._ending is None:
            self._ending = self._quotas.end(self._id, self._tenant, settlement)

    async def closed(self) -> None:
        """See Reservation."""
        if self._ending is not None:
            await asyncio.wait({self._ending}, timeout=CLOSED_SECONDS)
