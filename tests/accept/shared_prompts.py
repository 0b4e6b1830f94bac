"""Two worker processes, four tenants with a system prompt of 300 tokens each: where their requests go, and what is found there."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.types import Tenant
from tests.fakes.fleet_processes import workers
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.tiny_models import write_tiny_llama

SMALL = ("--threads", "1", "--kv-memory", "16MiB", "--max-model-len", "512", "--served-name", "tiny")
TENANTS = 4
SYSTEM, QUESTION = 300, 24  # tokens
REQUESTS = 20  # a tenant
WHOLE = SYSTEM // 16 * 16  # of the system prompt, in full blocks
HITS = 0.9


def _system(tenant: int) -> tuple[int, ...]:
    return tuple(3 + (17 * tenant + 5 * at + tenant * at) % 250 for at in range(SYSTEM))


async def _one(router: Router, tenant: int, number: int) -> tuple[str, bool]:
    """Its worker, and whether the whole system prompt was cached there."""
    question = tuple(3 + (29 * number + 3 * at + 7 * tenant) % 250 for at in range(QUESTION))
    owner = Tenant(id=f"t{tenant}", salt=f"salt {tenant}".encode())
    asked = request(*_system(tenant), *question, max_tokens=4, ignore_eos=True, tenant=owner)
    generation = await router.service.generate(asked)
    await collect(generation)
    return generation._flight.worker_id, generation.usage.cached_tokens >= WHOLE  # type: ignore[attr-defined]


async def measure(folder: Path) -> Mapping[str, Any]:
    """Each tenant asks one thing after the other; all four do so at once, the first of each after the other's."""
    model = write_tiny_llama(folder / "tiny")
    async with workers(model, folder, SMALL, SMALL) as pair:
        targets = [child.address for child in pair]
        async with running_router(*targets, tmp_path=folder) as router:
            await router.ready(workers=2)
            first = [await _one(router, tenant, 0) for tenant in range(TENANTS)]

            async def rest(tenant: int) -> list[tuple[str, bool]]:
                return [await _one(router, tenant, number) for number in range(1, REQUESTS)]

            others = await asyncio.gather(*map(rest, range(TENANTS)))
    every = [*first, *(one for each in others for one in each)]
    cold = Counter(worker_id for worker_id, hit in every if not hit)
    ids = {worker_id for worker_id, _ in every}
    spread = [cold.get(worker_id, 0) for worker_id in ids] + [0] * (2 - len(ids))
    hits = sum(hit for _, hit in every) / len(every)
    return {
        "passed": hits >= HITS and max(spread) - min(spread) <= 2,
        "requests": len(every),
        "hit_share": hits,
        "cold_by_worker": spread,
        "requests_by_worker": sorted(Counter(worker_id for worker_id, _ in every).values()),
    }


def show() -> Mapping[str, Any]:
    """On a tiny model: the prefix cache and the router are what counts."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(measure(Path(folder)))
    return {**told, "seconds": round(time.monotonic() - began, 1)}
