"""A router of four processes on one port, a tenant with a limit of requests and one with a limit of output tokens; two of the processes
are killed in the middle, and started again by the router.

What is accepted is counted at the clients. Then the ledger is held against what reached them: to the token where the answer came whole, and
within two seconds of tokens where the kill cut it.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from router.tenancy.records import Charge, Limits, TenantRecord
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery
from tests.accept.routers import Host, host
from tests.accept.tenants import fill, speaker

ROUTERS, LANES = 4, 3
BROKEN = 0  # no status: the connection was cut
SECONDS = 150.0
KILLS = (0.3, 61.0)  # seconds, and from there on as soon as something is being written
REQUESTS, TOKENS = 60, 6_000  # a minute
TENANTS = {"requests": Limits(requests_per_minute=REQUESTS), "tokens": Limits(output_tokens_per_minute=TOKENS)}
OUTPUT = 300
LOST_AFTER = 10.0 + 2 * 2.0  # a lease and two beats
RENEWED = 2.0 + 1.0  # seconds between two reports of tokens, and how late one may be


@dataclass(kw_only=True, slots=True)
class _Answer:
    """What reached a client: when each token came, and whether the answer was whole."""

    tenant: str
    id: str = ""
    tokens: list[float] = field(default_factory=list)
    whole: bool = False


async def _one(session: aiohttp.ClientSession, tenant: str, answers: list[_Answer]) -> int:
    """A stream, with a token's place in each chunk; the status."""
    body = {
        "model": "tiny",
        "prompt": [5, 6, 7],
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "stream": True,
        "logprobs": 0,
    }
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            return response.status
        answer = _Answer(tenant=tenant)
        answers.append(answer)
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                answer.id = event["id"].removeprefix("cmpl-")
                rows = event["choices"][0]["logprobs"]
                answer.tokens += [time.time()] * (len(rows["tokens"]) if rows else 0)
            answer.whole = answer.whole or line.startswith(b"data: [DONE]")
        return 200


async def _lane(address: str, tenant: str, key: str, answers: list[_Answer], statuses: list[int], end: float) -> None:
    """One request after the other over one connection, and over another after a kill: whichever process takes it."""
    while time.time() < end:
        async with speaker(f"http://{address}", key) as session:
            try:
                while time.time() < end:
                    status = await _one(session, tenant, answers)
                    statuses.append(status)
                    if status != 200:
                        await asyncio.sleep(0.5)
            except (aiohttp.ClientError, TimeoutError):
                statuses.append(BROKEN)


def _being_written(answers: list[_Answer]) -> bool:
    return any(not one.whole and time.time() - (one.tokens or [0.0])[-1] < 0.2 for one in answers)


async def _kill(pids: Sequence[int], answers: list[_Answer], begun: float) -> list[float]:
    """Kills these, one after the other, each while something is being written; when that was."""
    killed = []
    for pid, at in zip(pids, KILLS, strict=False):
        await asyncio.sleep(max(0.0, begun + at - time.time()))
        while not _being_written(answers):
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        killed.append(time.time())
    return killed


async def _run(running: Host, keys: Mapping[str, str]) -> tuple[list[_Answer], list[int], list[float]]:
    answers: list[_Answer] = []
    statuses: list[int] = []
    begun = time.time()
    async with asyncio.TaskGroup() as group:
        for tenant, key in list(keys.items()) * (LANES * ROUTERS):
            group.create_task(_lane(running.address, tenant, key, answers, statuses, begun + SECONDS))
        killing = group.create_task(_kill(running.pids, answers, begun))
    return answers, statuses, killing.result()


async def _ledger(path: Path) -> dict[str, Charge]:
    store = SqliteStore(path)
    try:
        lines = await store.usage(UsageQuery(limit=100_000))
        assert len({line.charge.id for line in lines}) == len(lines)
        return {line.charge.id: line.charge for line in lines}
    finally:
        await store.aclose()


def _most(events: list[tuple[float, int]]) -> int:
    """The most of any minute."""
    return max(sum(amount for at, amount in events if start <= at < start + 60) for start, _ in events)


def _wrong(answers: list[_Answer], ledger: Mapping[str, Charge]) -> tuple[list[str], list[str]]:
    """Whole answers whose line is not exact, and cut ones whose line is further off than the last report."""
    whole = [one.id for one in answers if one.whole and ledger[one.id].output_tokens != len(one.tokens)]
    cut = []
    for one in (one for one in answers if one.tokens and not one.whole):
        reported = sum(at < one.tokens[-1] - RENEWED for at in one.tokens)
        if one.id not in ledger or not reported <= ledger[one.id].output_tokens:
            cut.append(one.id)
    return whole, cut


def show() -> Mapping[str, Any]:
    """Passes where no minute has more than its limits, and the ledger is what it must be."""
    with TemporaryDirectory() as folder, host(Path(folder), ROUTERS) as running:
        tenants = [TenantRecord(name=name, limits=limits) for name, limits in TENANTS.items()]
        keys = asyncio.run(fill(running.store, tenants))
        time.sleep(1.0)  # within which every process knows
        answers, statuses, killed = asyncio.run(_run(running, keys))
        time.sleep(LOST_AFTER)
        ledger = asyncio.run(_ledger(running.store))
        again = sum("is ready again" in line for line in running.router.rest())
    requests = _most([(charge.started, 1) for charge in ledger.values() if charge.tenant == "requests"])
    tokens = _most([(at, 1) for one in answers if one.tenant == "tokens" for at in one.tokens])
    whole, cut = _wrong(answers, ledger)
    unreported = sum(
        len(one.tokens) - ledger[one.id].output_tokens
        for one in answers
        if one.tokens and not one.whole and one.tenant == "tokens" and one.id in ledger
    )
    slack = OUTPUT + unreported  # one request, and what killed routers had written since their last report
    unknown = sorted(ledger.keys() - {one.id for one in answers})
    lost = [charge for charge in ledger.values() if charge.finish == "lost"]
    return {
        "passed": requests <= REQUESTS
        and tokens <= TOKENS + slack
        and not whole
        and not cut
        and len(killed) == again == len(KILLS)
        and statuses.count(BROKEN) > 0,
        "routers": ROUTERS,
        "killed": len(killed),
        "started_again": again,
        "connections_cut": statuses.count(BROKEN),
        "seconds_measured": SECONDS,
        "most_requests_a_minute": requests,
        "limit_of_requests": REQUESTS,
        "most_output_tokens_a_minute_at_clients": tokens,
        "limit_of_output_tokens": TOKENS,
        "slack_of_output_tokens": slack,
        "accepted": len(answers),
        "refused": sum(status == 429 for status in statuses),
        "other_statuses": sorted(set(statuses) - {200, 429, BROKEN}),
        "whole": sum(one.whole for one in answers),
        "cut": sum(not one.whole for one in answers),
        "lost_lines": len(lost),
        "whole_but_inexact": whole,
        "cut_and_too_far_off": cut,
        "lines_that_no_client_saw": len(unknown),
    }
