"""Random reservations, renewals, settlements, crashes and time, through several routers' stores, against a model of what must be true.

The model knows nothing of slices: it keeps every use with its time, and asks of the store only what a tenant is promised.
"""

import asyncio
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from router.tenancy.rates import SLICE_MS
from router.tenancy.sqlite.books import LEASE_SECONDS
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import Refused, Renewal, UsageQuery
from tests.fakes.clock import FakeClock
from tests.fakes.tenancy import NOW, settlement, wanted

T = TypeVar("T")

TENANTS = ("acme", "beta")
LIMITS: dict[str, Any] = {
    "requests_per_minute": 4,
    "prompt_tokens_per_minute": 60,
    "output_tokens_per_minute": 50,
    "concurrent_requests": 4,
}
SLICE = SLICE_MS / 1000


@dataclass(kw_only=True)
class Live:
    tenant: str
    prompt: int
    held: int  # output tokens that may still come, as far as they count
    made: int = 0
    renewed: float
    lost: bool = False


@dataclass(kw_only=True)
class Model:
    """`uses`: (time, tenant, quantity) -> amount; `charged`: what the ledger must hold."""

    live: dict[str, Live] = field(default_factory=dict)
    uses: list[tuple[float, str, str, int, str]] = field(default_factory=list)
    charged: dict[str, tuple[str, int, str]] = field(default_factory=dict)  # id -> tenant, output tokens, finish

    def used(self, tenant: str, kind: str, now: float, window: float) -> int:
        return sum(a for at, t, k, a, _ in self.uses if (t, k) == (tenant, kind) and now - at < window)


class StoreMachine(RuleBasedStateMachine):
    """See the module."""

    charges = Bundle("charges")

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock(NOW)
        path = Path(self.folder.name) / "octavo.db"
        self.stores = [SqliteStore(path, clock=self.clock) for _ in range(2)]
        self.model = Model()
        self.count = 0

    def do(self, work: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run_until_complete(bounded())

    def store(self, which: int) -> SqliteStore:
        return self.stores[which % len(self.stores)]

    @rule(
        target=charges,
        which=st.integers(0, 1),
        tenant=st.sampled_from(TENANTS),
        prompt=st.integers(0, 40),
        output=st.integers(0, 70),
    )
    def reserve(self, which: int, tenant: str, prompt: int, output: int) -> Any:
        charge = self.reserve_one(which, tenant, prompt, output)
        return multiple() if charge is None else charge

    def reserve_one(self, which: int, tenant: str, prompt: int, output: int) -> str | None:
        self.count += 1
        charge_id = f"c{self.count}"
        answer = self.do(
            self.store(which).reserve(wanted(charge_id, of=tenant, prompt=prompt, output=output, **LIMITS))
        )
        now = self.clock()
        if isinstance(answer, Refused):
            self.check_refusal(answer, tenant, prompt, output)
            return None
        live = [
            held for held in self.model.live.values() if held.tenant == tenant and now - held.renewed < LEASE_SECONDS
        ]
        assert len(live) < LIMITS["concurrent_requests"]
        self.model.uses += [(now, tenant, "requests", 1, charge_id), (now, tenant, "prompt", prompt, charge_id)]
        held = min(output, LIMITS["output_tokens_per_minute"])
        self.model.live[charge_id] = Live(tenant=tenant, prompt=prompt, held=held, renewed=now)
        return charge_id

    @rule(
        target=charges,
        which=st.integers(0, 1),
        tenant=st.sampled_from(TENANTS),
        prompt=st.sampled_from((0, 1, 20)),
        after=st.sampled_from((0, 0, 29.5, 59.5)),
    )
    def reserve_all(self, which: int, tenant: str, prompt: int, after: float) -> Any:
        """As many as there may be, one a router in turns."""
        self.clock.advance(after)
        granted = []
        while isinstance(charge := self.reserve_one(which + len(granted), tenant, prompt, 5), str):
            granted.append(charge)
        return multiple(*granted)

    def check_refusal(self, refused: Refused, tenant: str, prompt: int, output: int) -> None:
        """Nobody is refused whom the limits, with a slice's tolerance, allow."""
        now, model = self.clock(), self.model
        window = 60 + SLICE
        held = sum(
            max(0, one.held)
            for one in model.live.values()
            if one.tenant == tenant and now - one.renewed < LEASE_SECONDS
        )
        excess = {
            "requests_per_minute": model.used(tenant, "requests", now, window) + 1 > LIMITS["requests_per_minute"],
            "prompt_tokens_per_minute": model.used(tenant, "prompt", now, window) + prompt
            > LIMITS["prompt_tokens_per_minute"],
            "output_tokens_per_minute": model.used(tenant, "output", now, window) + held + min(output, 50) > 50,
            "concurrent_requests": sum(
                one.tenant == tenant and now - one.renewed < LEASE_SECONDS for one in model.live.values()
            )
            >= 4,
        }
        assert excess[refused.limit]
        assert refused.retry_after > 0

    @rule(which=st.integers(0, 1), charge=charges, more=st.integers(0, 30))
    def renew(self, which: int, charge: str, more: int) -> None:
        live = self.model.live.get(charge)
        self.do(self.store(which).renew([Renewal(charge_id=charge, output_tokens=(live.made if live else 0) + more)]))
        if live is not None:
            self.make(charge, live, live.made + more)
            live.renewed = self.clock()

    def make(self, charge: str, live: Live, made: int) -> None:
        self.model.uses.append((self.clock(), live.tenant, "output", made - live.made, charge))
        live.held = max(0, live.held - (made - live.made))
        live.made = made

    @rule(which=st.integers(0, 1), charge=charges, more=st.integers(0, 30))
    def settle(self, which: int, charge: str, more: int) -> None:
        live = self.model.live.pop(charge, None)
        made = (live.made if live else 0) + more
        ours = self.do(self.store(which).settle(settlement(charge, prompt=live.prompt if live else 0, output=made)))
        assert ours == (live is not None)
        if live is not None:
            self.make(charge, live, made)
            self.model.charged[charge] = (live.tenant, made, "stop")

    @rule(which=st.integers(0, 1), charge=consumes(charges))
    def abandon(self, which: int, charge: str) -> None:
        live = self.model.live.get(charge)
        if live is not None and live.made:
            return  # only what gave nothing is abandoned
        assert self.do(self.store(which).abandon(charge)) == (live is not None)
        if live is not None:
            del self.model.live[charge]
            self.model.uses = [use for use in self.model.uses if use[4] != charge]

    @rule(seconds=st.sampled_from((0.1, 1, 4, 9.9, 10, 29, 58, 59.7, 60, 60.25, 61)))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(which=st.integers(0, 1))
    def sweep(self, which: int) -> None:
        now = self.clock()
        lost = {charge: live for charge, live in self.model.live.items() if live.renewed + LEASE_SECONDS <= now}
        assert self.do(self.store(which).sweep()) == len(lost)
        for charge, live in lost.items():
            del self.model.live[charge]
            self.model.charged[charge] = (live.tenant, live.made, "lost")

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """A router ends, and another takes its place: nothing that was committed is forgotten."""
        self.do(self.stores[which].aclose())
        self.stores[which] = SqliteStore(Path(self.folder.name) / "octavo.db", clock=self.clock)

    @invariant()
    def the_ledger_is_the_models(self) -> None:
        lines = self.do(self.stores[0].usage(UsageQuery()))
        told = {line.charge.id: (line.charge.tenant, line.charge.output_tokens, line.charge.finish) for line in lines}
        assert len(told) == len(lines)
        assert told == self.model.charged

    @invariant()
    def no_minute_has_more_than_its_limit(self) -> None:
        now = self.clock()
        for tenant in TENANTS:
            assert self.model.used(tenant, "requests", now, 60) <= LIMITS["requests_per_minute"]
            assert self.model.used(tenant, "prompt", now, 60) <= LIMITS["prompt_tokens_per_minute"]

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for store in self.stores:
                self.do(store.aclose())
            self.folder.cleanup()
            self.loop.close()


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
