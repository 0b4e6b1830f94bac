"""What the time to the first token tells of the cache: a tenant's own hits, and nothing of another's.

Samples of three kinds come in turns: a prompt that is new (cold), one that another tenant has just had (foreign), and the caller's own
again (own). Each is preceded by a request of the other tenant, so that nothing but the prompt differs. Mann and Whitney's U test, with
the normal approximation and continuity correction, says whether two kinds can be told apart.
"""

import asyncio
import math
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp

from octavo.bench.metrics import percentile
from octavo.bench.workload import Item
from router.tenancy.records import TenantRecord
from tests.accept.tenants import TenantStack, items, tenant_stack, ttft

SAMPLES = 30
ROUNDS = 3
PROMPT = 400  # tokens
TOLD, HIDDEN = 0.001, 0.05


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided, of the U test; the values are times, and never equal."""
    m, n = len(one), len(other)
    u = sum(a < b for a in one for b in other)
    mean, deviation = m * n / 2, math.sqrt(m * n * (m + n + 1) / 12)
    z = max(0.0, abs(u - mean) - 0.5) / deviation
    return math.erfc(z / math.sqrt(2))


async def _cached(session: aiohttp.ClientSession, model: str, item: Item) -> int:
    body = {"model": model, "prompt": list(item.prompt), "max_tokens": 1, "temperature": 0}
    async with session.post("/v1/completions", json=body) as response:
        told: int = (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
        return told


async def _round(
    a: aiohttp.ClientSession, b: aiohttp.ClientSession, model: str, asked: Iterator[Item]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"cold": [], "foreign": [], "own": []}
    for _ in range(SAMPLES):
        shared, fresh = next(asked), next(asked)
        await ttft(a, model, shared)
        times["foreign"].append(await ttft(b, model, shared))
        await ttft(a, model, next(asked))
        times["cold"].append(await ttft(b, model, fresh))
        await ttft(a, model, next(asked))
        times["own"].append(await ttft(b, model, fresh))
    return times


def _told(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    medians = {kind: 1000 * percentile(values, 50) for kind, values in times.items()}
    return {
        "median_ttft_ms": medians,
        "p_own_cold": p_value(times["own"], times["cold"]),
        "p_foreign_cold": p_value(times["foreign"], times["cold"]),
    }


async def _measure(stack: TenantStack) -> dict[str, Any]:
    asked = items(7, PROMPT, 1)
    async with stack.session("a") as a, stack.session("b") as b:
        prompt = next(asked)
        cached = [await _cached(who, stack.model, prompt) for who in (a, a, b, b)]
        await _round(a, b, stack.model, asked)  # warm
        rounds = [_told(await _round(a, b, stack.model, asked)) for _ in range(ROUNDS)]
    whole = (PROMPT - 1) // 16 * 16
    told = all(one["p_own_cold"] < TOLD for one in rounds)
    hidden = all(one["p_foreign_cold"] > HIDDEN for one in rounds)
    return {
        "passed": cached == [0, whole, 0, whole] and told and hidden,
        "cached_tokens_of_a_a_b_b": cached,
        "prompt_tokens": PROMPT,
        "samples_a_kind": SAMPLES,
        "rounds": rounds,
    }


def show() -> Mapping[str, Any]:
    """Passes where own hits are told from cold in every round, and another tenant's prompts never are."""
    with tenant_stack([TenantRecord(name="a"), TenantRecord(name="b")]) as stack:
        urllib.request.urlopen(f"http://{stack.stack.http}/ready", timeout=30).close()
        return asyncio.run(_measure(stack))
