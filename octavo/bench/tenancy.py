"""`octavo bench tenancy`: what keys, limits and the ledger cost a request, in processor time of this process, the store's thread included.

Each request is known by its key, gets its salt, reserves, and settles, as in the router, with nothing else between; the same without a
store is taken off. What a round trip to the store takes is told beside: it is waited for before a request is dispatched and at its end.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo.bench import machine
from octavo.bench.metrics import percentile
from router.request import GenerateRequest, TokenPrompt, Usage
from router.tenancy.admission import Estimate, OpenAdmission
from router.tenancy.keyring import OpenAuthenticator
from router.tenancy.keys import new_key
from router.tenancy.records import Limits, Scope, TenantRecord
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.start import Tenancy, over
from shared.process import tune_threads

_PLENTY = 1_000_000_000
_LIMITS = Limits(
    requests_per_minute=_PLENTY,
    prompt_tokens_per_minute=_PLENTY,
    output_tokens_per_minute=_PLENTY,
    concurrent_requests=_PLENTY,
)
_USAGE = Usage(prompt_tokens=100, completion_tokens=100, cached_tokens=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`requests` in all, `concurrency` of them at once, of `tenants` tenants in turn, each with a key and every limit."""

    requests: int
    concurrency: int
    tenants: int


@dataclass(kw_only=True, slots=True)
class _Waits:
    reserve: list[float]
    settle: list[float]


async def _fill(store: SqliteStore, tenants: int) -> list[str]:
    """Keys of as many tenants."""
    await store.put_tenants([TenantRecord(name=f"t{i}", limits=_LIMITS) for i in range(tenants)], actor="bench")
    keys = [
        new_key(tenant=f"t{i}", name="main", scopes=frozenset({Scope.INFER}), now=time.time()) for i in range(tenants)
    ]
    for key in keys:
        await store.add_key(key.record, actor="bench")
    return [key.text for key in keys]


async def _one(tenancy: Tenancy, key: str, charge_id: str, waits: _Waits) -> None:
    caller = tenancy.authenticator.authenticate(key)
    request = GenerateRequest(model="m", prompt=TokenPrompt(tokens=(1,)), caller=caller)
    _ = request.tenant
    begun = time.perf_counter()
    estimate = Estimate(charge_id=charge_id, model="m", prompt_tokens=100, output_tokens=100)
    reservation = await tenancy.admission.reserve(caller, estimate)
    reservation.follow(lambda: _USAGE)
    reserved = time.perf_counter()
    reservation.settle(_USAGE, "stop", "w")
    await reservation.closed()
    waits.reserve.append(reserved - begun)
    waits.settle.append(time.perf_counter() - reserved)


async def _run(tenancy: Tenancy, keys: list[str], shape: Shape, name: str) -> dict[str, float]:
    """Processor time and waits of all requests."""
    waits, left = _Waits(reserve=[], settle=[]), iter(range(shape.requests))

    async def lane() -> None:
        for number in left:
            await _one(tenancy, keys[number % len(keys)], f"{name}{number}", waits)

    cpu, begun = time.process_time(), time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(shape.concurrency)))
    used, took = time.process_time() - cpu, time.perf_counter() - begun
    return {
        "cpu_us_per_request": 1e6 * used / shape.requests,
        "requests_per_second": shape.requests / took,
        "reserve_ms_median": 1000 * percentile(waits.reserve, 50),
        "reserve_ms_p99": 1000 * percentile(waits.reserve, 99),
        "settle_ms_median": 1000 * percentile(waits.settle, 50),
        "settle_ms_p99": 1000 * percentile(waits.settle, 99),
    }


async def measure(shape: Shape, progress: Callable[[str], None]) -> dict[str, Any]:
    """The report of one run; the store lies in a temporary folder."""
    tune_threads()  # as the router does
    nobody = Tenancy(authenticator=OpenAuthenticator(), admission=OpenAdmission())
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "octavo.db")
        progress(f"{shape.tenants} tenants")
        keys = await _fill(store, shape.tenants)
        async with over(store) as tenancy:
            progress(f"{shape.requests} requests, {shape.concurrency} at once")
            await _run(tenancy, keys, shape, "warm")
            without = await _run(nobody, keys, shape, "open")
            with_store = await _run(tenancy, keys, shape, "real")
    cost = with_store["cpu_us_per_request"] - without["cpu_us_per_request"]
    return {
        "bench": "tenancy",
        "machine": machine.machine(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "requests": shape.requests,
        "concurrency": shape.concurrency,
        "tenants": shape.tenants,
        "tenancy_cpu_us_per_request": cost,
        "with_store": with_store,
        "without_store": without,
    }
