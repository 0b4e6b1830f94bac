"""Tenants of a running stack: the real router process over its store, and a real engine behind it."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.tenancy.records import TenantRecord
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery, UsageTotal
from tests.accept.tenants import fill
from tests.e2e.conftest import SMALL
from tests.e2e.stack import RunningStack, until

PROMPT = list(range(20, 120))  # six whole blocks and some


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "octavo.db"


@pytest.fixture
def stack(tiny_model: Path, database: Path) -> Iterator[RunningStack]:
    arguments = ("--port", "0", "--store", str(database))
    running = RunningStack(tiny_model, workers=1, worker_arguments=SMALL, arguments=arguments)
    yield running
    assert running.stop() == 0, running.said()


def ask(stack: RunningStack, key: str | None, **body: Any) -> tuple[int, dict[str, Any]]:
    said = {"model": stack.model, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True} | body
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    request = urllib.request.Request(f"http://{stack.http}/v1/completions", json.dumps(said).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cached(answer: tuple[int, dict[str, Any]]) -> int:
    status, body = answer
    assert status == 200, body
    found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def _totals(database: Path) -> list[UsageTotal]:
    store = SqliteStore(database)
    try:
        return list(await store.totals(UsageQuery()))
    finally:
        await store.aclose()


def test_c52_on_the_real_engine_a_tenant_finds_its_own_prefix_and_nobody_elses(
    stack: RunningStack, database: Path
) -> None:
    assert ask(stack, None)[0] == 200  # no tenants yet: open to all
    keys = asyncio.run(fill(database, [TenantRecord(name=name) for name in ("a", "b")]))
    until(lambda: ask(stack, None)[0] == 401, "the router to know of tenants", 10)
    own = [keys[name] for name in ("a", "a", "b", "b")]
    assert [cached(ask(stack, key)) for key in own] == [0, 96, 0, 96]
    assert [cached(ask(stack, keys["a"], cache_salt="x")) for _ in range(2)] == [0, 96]
    assert cached(ask(stack, keys["b"], cache_salt="x")) == 0
    totals = {total.tenant: total for total in asyncio.run(_totals(database))}
    told = {name: (totals[name].requests, totals[name].cached_tokens, totals[name].output_tokens) for name in "ab"}
    assert told == {"a": (4, 192, 12), "b": (3, 96, 9)}
