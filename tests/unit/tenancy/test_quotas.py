"""Reservations over a store that is slow, that fails, or whose caller leaves: what is reserved always ends, once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from router.request import Usage
from router.tenancy import quotas as module
from router.tenancy.admission import Estimate
from router.tenancy.caller import Caller
from router.tenancy.quotas import Quotas
from router.tenancy.rates import Rate, Rates, duration
from router.tenancy.records import Limits
from router.tenancy.store import Granted, Refused, Renewal, Settlement, UsageLine, UsageQuery, UsageTotal, Wanted
from shared.errors import InvalidRequest, RateLimited, Unavailable
from shared.redact import redact
from shared.types import Tenant
from tests.fakes.clock import FakeClock
from tests.fakes.scripted_worker import until

CALLER = Caller(tenant=Tenant(id="acme"), key="main", limits=Limits(prompt_tokens_per_minute=50))
USED = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)


@dataclass(kw_only=True)
class FakeBooks:
    """Implements Books; remembers what it was told. `open` cleared, reserve waits; `failures` is how many calls still fail;
    `refuses_ends`: all those that end something do."""

    refuse: Refused | None = None
    failures: int = 0
    refuses_ends: bool = False
    refused_ends: int = 0
    failure: Exception = field(default_factory=lambda: Unavailable("no store"))
    open: asyncio.Event = field(default_factory=asyncio.Event)
    reserved: list[str] = field(default_factory=list)
    renewed: list[Renewal] = field(default_factory=list)
    settled: list[Settlement] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    sweeps: int = 0

    def _maybe_fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.failure

    def _maybe_refuse(self) -> None:
        if self.refuses_ends:
            self.refused_ends += 1
            raise self.failure
        self._maybe_fail()

    async def reserve(self, wanted: Wanted) -> Granted | Refused:
        await self.open.wait()
        self._maybe_fail()
        if self.refuse is not None:
            return self.refuse
        self.reserved.append(wanted.charge_id)
        return Granted(rates=Rates())

    async def renew(self, renewals: Sequence[Renewal]) -> None:
        self._maybe_fail()
        self.renewed.extend(renewals)

    async def settle(self, settlement: Settlement) -> bool:
        self._maybe_refuse()
        self.settled.append(settlement)
        return True

    async def abandon(self, charge_id: str) -> bool:
        self._maybe_refuse()
        self.abandoned.append(charge_id)
        return True

    async def sweep(self) -> int:
        self.sweeps += 1
        return 0

    async def usage(self, query: UsageQuery) -> Sequence[UsageLine]:
        return []

    async def totals(self, query: UsageQuery) -> Sequence[UsageTotal]:
        return []


@pytest.fixture
def books() -> FakeBooks:
    fake = FakeBooks()
    fake.open.set()
    return fake


@pytest.fixture
async def quotas(books: FakeBooks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Quotas]:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    quotas = Quotas(books, renew_seconds=0.005)
    quotas.start()
    yield quotas
    await quotas.aclose()


def estimate(prompt: int = 3) -> Estimate:
    return Estimate(charge_id="c1", model="tiny", prompt_tokens=prompt, output_tokens=9)


async def test_the_first_end_counts_and_no_other(books: FakeBooks, quotas: Quotas) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    reservation.settle(USED, "stop", "w1")
    reservation.settle(USED, "length", "w2")
    reservation.abandon()
    await reservation.closed()
    assert [(one.charge_id, one.finish, one.output_tokens) for one in books.settled] == [("c1", "stop", 2)]
    assert books.abandoned == []


async def test_what_lives_is_renewed_with_what_it_has_made(books: FakeBooks, quotas: Quotas) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    reservation.follow(lambda: USED)
    await until(lambda: any(one.output_tokens == 2 for one in books.renewed), "a renewal")
    assert books.sweeps
    reservation.abandon()
    await reservation.closed()
    count = len(books.renewed)
    sweeps = books.sweeps
    await until(lambda: books.sweeps > sweeps + 1, "another beat")
    assert len(books.renewed) == count


async def test_a_store_that_fails_for_a_while_gets_the_settlement_all_the_same(
    books: FakeBooks, quotas: Quotas
) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    books.failures = 40
    reservation.settle(USED, "stop", "w1")
    await reservation.closed()
    await until(lambda: books.settled, "the settlement")


async def test_what_has_ended_is_renewed_until_the_store_takes_its_end(books: FakeBooks, quotas: Quotas) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    reservation.follow(lambda: USED)
    books.refuses_ends = True
    reservation.settle(USED, "stop", "w1")
    await until(lambda: any(one.output_tokens == 2 for one in books.renewed), "a renewal after the end")
    books.refuses_ends = False
    await until(lambda: books.settled, "the settlement")
    await until(lambda: quotas.used() == 0, "nothing is renewed any more")


async def test_a_router_that_closes_does_not_wait_for_ever_for_a_store_that_takes_nothing(
    books: FakeBooks, quotas: Quotas
) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    books.refuses_ends = True
    reservation.settle(USED, "stop", "w1")
    async with asyncio.timeout(20):
        await quotas.aclose()
    assert books.settled == []


async def test_an_end_that_nobody_foresaw_is_in_the_log(
    books: FakeBooks, quotas: Quotas, caplog: pytest.LogCaptureFixture
) -> None:
    reservation = await quotas.reserve(CALLER, estimate())
    books.failure, books.refuses_ends = ValueError("broken"), True
    reservation.settle(USED, "stop", "w1")
    await reservation.closed()
    assert "did not take a reservation's end" in caplog.text
    assert quotas.used() == 0


@pytest.mark.parametrize("failure", [Unavailable("no store"), ValueError("broken")])
async def test_renewals_go_on_after_one_that_failed(books: FakeBooks, quotas: Quotas, failure: Exception) -> None:
    books.failure = failure
    reservation = await quotas.reserve(CALLER, estimate())
    books.failures = 2
    reservation.follow(lambda: USED)
    await until(lambda: books.renewed, "a renewal after two failures")
    assert books.failures == 0


@pytest.mark.parametrize("failures", [0, 2])
async def test_nobody_is_taken_for_lost_just_after_all_were_kept_from_renewing(books: FakeBooks, failures: int) -> None:
    wall = FakeClock(1_000.0)
    quotas = Quotas(books, wall=wall)
    for sweeps in (1, 2):
        wall.advance(2.0)
        await quotas.beat()
        assert books.sweeps == sweeps
    books.failures = failures
    for _ in range(failures):
        with pytest.raises(Unavailable):
            await quotas.beat()
    wall.advance(12.0)
    for _ in range(5):
        await quotas.beat()
        wall.advance(2.0)
    assert books.sweeps == 2, "the others have ten seconds to renew theirs"
    await quotas.beat()
    assert books.sweeps == 3
    await quotas.aclose()


async def test_a_store_that_cannot_be_reached_lets_nobody_in(books: FakeBooks, quotas: Quotas) -> None:
    books.failures = 1
    with pytest.raises(Unavailable):
        await quotas.reserve(CALLER, estimate())
    assert quotas.used() == 0


async def leave_while_it_waits(books: FakeBooks, quotas: Quotas) -> None:
    """A caller, while the books are closed; they stay so."""
    books.open.clear()
    task = asyncio.create_task(quotas.reserve(CALLER, estimate()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_leaves_while_it_waits_has_reserved_nothing(books: FakeBooks, quotas: Quotas) -> None:
    await leave_while_it_waits(books, quotas)
    books.open.set()
    await until(lambda: books.abandoned == ["c1"], "the abandonment")
    assert books.reserved == ["c1"]


async def test_who_leaves_is_taken_off_the_books_however_long_those_fail(books: FakeBooks, quotas: Quotas) -> None:
    await leave_while_it_waits(books, quotas)
    books.refuses_ends = True
    books.open.set()
    await until(lambda: books.refused_ends > 5, "some tries")
    books.refuses_ends = False
    await until(lambda: books.abandoned == ["c1"], "the abandonment")


async def test_a_refusal_names_the_limit_and_the_time(books: FakeBooks, quotas: Quotas) -> None:
    rates = Rates(requests=Rate(limit=5, remaining=0, reset=61.0))
    books.refuse = Refused(rates=rates, limit="prompt_tokens_per_minute", retry_after=1.25)
    with pytest.raises(RateLimited) as caught:
        await quotas.reserve(CALLER, estimate())
    assert caught.value.retry_after == 1.25
    assert caught.value.message == "the limit of 50 prompt tokens per minute is reached; try again in 1.250 s"
    assert caught.value.rates["x-ratelimit-reset-requests"] == "1m1s"


def caller_of(**limits: int) -> Caller:
    return Caller(tenant=Tenant(id="acme"), key="main", limits=Limits(**limits))


async def test_a_refusal_that_meets_every_request_stands_for_a_moment_and_asks_the_store_nothing(
    books: FakeBooks,
) -> None:
    clock = FakeClock()
    quotas, caller = Quotas(books, clock=clock), caller_of(requests_per_minute=5)
    books.refuse = Refused(rates=Rates(), limit="requests_per_minute", retry_after=30.0)
    quotas.check(caller)
    with pytest.raises(RateLimited):
        await quotas.reserve(caller, estimate())
    clock.advance(0.125)
    with pytest.raises(RateLimited) as caught:
        quotas.check(caller)
    assert caught.value.retry_after == 29.875
    quotas.check(replace(caller, tenant=Tenant(id="other")))
    clock.advance(0.125)
    quotas.check(caller)


async def test_a_refusal_for_tokens_says_nothing_of_another_request(books: FakeBooks) -> None:
    quotas, caller = Quotas(books, clock=FakeClock()), caller_of(output_tokens_per_minute=50)
    books.refuse = Refused(rates=Rates(), limit="output_tokens_per_minute", retry_after=30.0)
    with pytest.raises(RateLimited):
        await quotas.reserve(caller, estimate())
    quotas.check(caller)


async def test_a_place_that_comes_free_here_ends_a_refusal_for_concurrency(books: FakeBooks) -> None:
    quotas, caller = Quotas(books, clock=FakeClock()), caller_of(concurrent_requests=1)
    reservation = await quotas.reserve(caller, estimate())
    books.refuse = Refused(rates=Rates(), limit="concurrent_requests", retry_after=2.0)
    with pytest.raises(RateLimited):
        await quotas.reserve(caller, replace(estimate(), charge_id="c2"))
    with pytest.raises(RateLimited) as caught:
        quotas.check(caller)
    assert caught.value.retry_after == 2.0
    reservation.settle(USED, "stop", "w1")
    quotas.check(caller)
    await reservation.closed()


async def test_a_prompt_that_no_minute_allows_asks_the_store_nothing(books: FakeBooks, quotas: Quotas) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await quotas.reserve(CALLER, estimate(prompt=51))
    assert caught.value.param == "prompt"
    assert books.reserved == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (360.25, "6m0.25s"), (-1, "0ms")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_keys_are_taken_out_of_text_whole_or_cut() -> None:
    key = "octk-" + "a1B2" * 3 + "-" + "x" * 43
    for text in (key, f"'{key}'", f"path/{key[:30]}", f"{key}{key}", key[:14]):
        assert "a1B2" not in redact(text)
    assert redact("octavo-0.1.0 octavo-router") == "octavo-0.1.0 octavo-router"
