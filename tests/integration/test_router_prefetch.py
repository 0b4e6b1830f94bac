"""A worker is told of adapters that requests will come for: once, of few at a time, and only where that spares somebody a wait."""

import asyncio
from collections import Counter
from typing import Any

from router.adapters import places
from shared.types import AdapterInfo, AdapterLevel, AdapterLoad
from tests.fakes.router import Router, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, load_report, until
from tests.integration.test_router_adapters import A, entry, scripted, sent


def told(*workers: ScriptedWorker) -> list[tuple[str, bytes]]:
    return [(one.name, one.digest) for worker in workers for one in worker.now.of("prefetch_adapter")]


def ask(router: Router, model: str) -> "asyncio.Task[Any]":
    return asyncio.create_task(router.service.generate(request(model=model)))


def many(count: int, level: AdapterLevel = AdapterLevel.SOURCE) -> list[AdapterInfo]:
    return [entry(f"a{number}", bytes([number]) * 32, level=level) for number in range(count)]


def full(*adapters: AdapterInfo, **info: Any) -> ScriptedWorker:
    """Gives no credit: what is asked waits in the router."""
    worker = scripted(*adapters, **info)
    worker.first_load = load_report(credits=0)
    return worker


async def test_while_a_request_waits_in_the_router_its_worker_is_told_once(tmp_path):
    async with full(entry("style", A)) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        asks = [ask(router, "style") for _ in range(5)]
        await until(lambda: told(worker), "a prefetch")
        await until(lambda: router.metric("requests_queued", model="tiny") == 5, "the queue")
        assert told(worker) == [("style", A)]
        assert not sent(worker)
        worker.now.load()
        await asyncio.gather(*asks)
        assert Counter(sent(worker)) == {("style", A): 5}
        assert told(worker) == [("style", A)]


async def test_what_is_in_memory_or_sent_already_is_not_told(tmp_path):
    adapters = (entry("host", A, level=AdapterLevel.HOST), entry("cold", b"b" * 32), entry("unread"))
    async with scripted(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for model in ("host", "cold", "unread", "tiny"):
            await ask(router, model)
        assert len(sent(worker)) == 4
        assert told(worker) == []


async def test_no_more_than_a_few_are_told_at_a_time_and_more_when_those_are_there(tmp_path):
    adapters = many(places.MOST + 2)
    async with full(*adapters) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        asks = [ask(router, info.name) for info in adapters]
        await until(lambda: router.metric("requests_queued", model="tiny") == len(asks), "the queue")
        await until(lambda: len(told(worker)) >= places.MOST, "prefetches")
        assert told(worker) == [(info.name, info.digest) for info in adapters[: places.MOST]]
        worker.now.adapters(*many(places.MOST, AdapterLevel.HOST))
        view = router.service._fleet.links[0].worker.stream.adapters
        await until(lambda: view.entries["a0"].level is AdapterLevel.HOST)
        asks.append(ask(router, adapters[-1].name))
        await until(lambda: len(told(worker)) > places.MOST, "another")
        assert told(worker)[places.MOST :] == [(adapters[-1].name, adapters[-1].digest)]
        for each in asks:
            each.cancel()
        await asyncio.gather(*asks, return_exceptions=True)


async def test_as_traffic_grows_the_next_worker_is_told(tmp_path):
    workers = [scripted(entry("style", A), worker_id=f"w{number}") for number in range(3)]
    busy = AdapterLoad(digest=A, running=8, waiting=4, idle_ms=0)
    for worker in workers[:1]:
        worker.first_load = load_report(running=8, waiting=4, adapters=(busy,))
    async with workers[0], workers[1], workers[2], running_router(*workers, tmp_path=tmp_path) as router:
        await router.ready(3)
        for _ in range(3):
            await ask(router, "style")
        await until(lambda: told(*workers), "a prefetch")
        assert {name for name, _ in told(*workers[1:])} == {"style"}
        assert not told(workers[0])


async def test_only_workers_that_know_the_version_are_told(tmp_path):
    one, two = full(entry("style", A, loaded=2), worker_id="w1"), full(entry("style", b"b" * 32), worker_id="w2")
    async with one, two, running_router(one, two, tmp_path=tmp_path) as router:
        await router.ready(2)
        asked = ask(router, "style")
        await until(lambda: told(one), "a prefetch")
        assert (told(one), told(two)) == ([("style", A)], [])
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
