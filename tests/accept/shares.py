"""Three tenants that always have more to do than they get: what each gets of the engine's service is what its weight says."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from octavo.bench import load
from octavo.bench.workload import Item
from router.tenancy.records import TenantRecord
from tests.accept.tenants import TenantStack, items, tenant_stack

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}
LANES = 16  # requests that a tenant has in flight: many more than run
RUNNING = 6
WARM_SECONDS = 15.0
SECONDS = 60.0
TOLERANCE = 0.10


@dataclass(kw_only=True, slots=True)
class _Service:
    """Virtual tokens that came, with their times: a prompt's (1 each) with the first piece, an output's (2) with its own."""

    came: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def between(self, start: float, end: float) -> float:
        return sum(amount for at, amount in self.came if start <= at < end)


async def _lane(
    session: aiohttp.ClientSession, model: str, asked: Iterator[Item], service: _Service, end: float
) -> None:
    while time.perf_counter() < end:
        item = next(asked)
        first = True

        def piece(at: float, item: Item = item) -> None:
            nonlocal first
            service.came.append((at, 2.0 + (len(item.prompt) if first else 0.0)))
            first = False

        try:
            await load.request(session, item, model, piece)
        except (load.RequestFailed, aiohttp.ClientError) as error:
            service.errors.append(str(error))
            await asyncio.sleep(0.5)


async def _tenant(stack: TenantStack, name: str, seed: int, end: float) -> _Service:
    service, asked = _Service(), items(seed, 32, 16)
    async with stack.session(name) as session:
        await asyncio.gather(*(_lane(session, stack.model, asked, service, end) for _ in range(LANES)))
    return service


async def _measure(stack: TenantStack) -> dict[str, Any]:
    start = time.perf_counter() + WARM_SECONDS
    end = start + SECONDS
    each = await asyncio.gather(*(_tenant(stack, name, seed, end) for seed, name in enumerate(WEIGHTS)))
    served = {name: service.between(start, end) for name, service in zip(WEIGHTS, each, strict=True)}
    total, weights = sum(served.values()), sum(WEIGHTS.values())
    shares = {name: served[name] / total for name in WEIGHTS}
    off = {name: shares[name] / (WEIGHTS[name] / weights) - 1 for name in WEIGHTS}
    errors = [error for service in each for error in service.errors]
    return {
        "passed": max(map(abs, off.values())) <= TOLERANCE,
        "weights": WEIGHTS,
        "seconds_measured": SECONDS,
        "virtual_tokens": served,
        "shares": shares,
        "off_by": off,
        "errors": len(errors),
        "first_errors": errors[:3],
    }


def show() -> Mapping[str, Any]:
    """Passes where every share is within a tenth of its weight's."""
    tenants = [TenantRecord(name=name, weight=weight) for name, weight in WEIGHTS.items()]
    with tenant_stack(tenants, ("--max-running", str(RUNNING))) as stack:
        return asyncio.run(_measure(stack))
