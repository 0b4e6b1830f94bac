"""Loads, replacements, pins and unloads at random, while workers refuse, lose their streams and begin again: whatever happens, a request
gets the version that is registered or none, and in the end all workers have what is registered and nothing else."""

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.adapters import keeper
from router.tenancy.caller import OPEN_CALLER
from router.tenancy.records import AdapterRecord
from shared.errors import ModelNotFound, OctavoError, Overloaded
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, until
from tests.integration.test_router_adapters import scripted

NAMES, SOURCES, OPERATIONS = ("a", "b"), ("/1", "/2", "/3"), 40

Held = dict[str, tuple[bytes, bool]]


def held(worker: ScriptedWorker) -> Held:
    return {name: (info.digest, info.pinned) for name, info in worker.adapters.items()}


def registered(router: Router) -> Held:
    reports = router.service.operator.list(OPEN_CALLER)
    return {report.name: (report.digest, report.pinned) for report in reports if report.registered}


async def operate(router: Router, draw: random.Random) -> None:
    operator, name = router.service.operator, draw.choice(NAMES)
    match draw.choice(("load", "replace", "replace", "unload", "pin")):
        case "unload":
            await operator.unload(OPEN_CALLER, name)
        case "pin":
            await operator.pin(OPEN_CALLER, name, draw.random() < 0.5)
        case kind:
            await operator.load(OPEN_CALLER, name, draw.choice(SOURCES), replace=kind == "replace")


def trouble(worker: ScriptedWorker, draw: random.Random) -> None:
    """It refuses from now on; loses its stream; or begins again with nothing."""
    error = Overloaded("no room", code="adapter_memory")
    match draw.choice(("none", "early", "late", "cut", "again")):
        case "early":
            worker.refuses = error
        case "late":
            worker.refuses_late = error
        case "cut":
            worker.now.drop()
        case "again":
            worker.adapters.clear()
            worker.info = replace(worker.info, worker_id=f"{worker.info.worker_id[:2]}{draw.getrandbits(32):x}")
            worker.now.drop()


def heal(workers: list[ScriptedWorker]) -> None:
    for worker in workers:
        worker.refuses = worker.refuses_late = None


def up(router: Router) -> bool:
    """Whether all are connected; some may have an open breaker, for the clock stands still."""
    return all(link.worker is not None for link in router.service._fleet.links)


def told(router: Router) -> bool:
    """Whether each worker is known to have what is registered."""
    reports = router.service.operator.list(OPEN_CALLER)
    return all(at.info is not None and at.info.digest == report.digest for report in reports for at in report.workers)


def history(router: Router) -> list[tuple[str, bytes]]:
    """Grows with each version that is registered."""
    registry: Any = router.service.operator._registry
    put, made = registry._put, list[tuple[str, bytes]]()

    def noted(record: AdapterRecord) -> None:
        made.append((record.canonical, record.digest))
        put(record)

    registry._put = noted
    return made


async def ask(router: Router, workers: list[ScriptedWorker], made: list[tuple[str, bytes]], name: str) -> None:
    """What it gets is what the name is registered for, at one moment of the call at least."""
    streams = {id(worker.now): len(worker.now.submits) for worker in workers}
    known, since = registered(router).get(name, (b"", False))[0], len(made)
    with suppress(OctavoError):
        await collect(await router.service.generate(request(model=name, max_tokens=2)))
    new = [submit for worker in workers for submit in worker.now.submits[streams.get(id(worker.now), 0) :]]
    digests = {submit.adapter_digest for submit in new if submit.adapter_name == name}
    assert digests <= {known, *(digest for each, digest in made[since:] if each == name)}
    assert all(submit.adapter_name == name for submit in new)


@pytest.mark.parametrize("seed", range(4))
async def test_requests_get_the_registered_version_and_workers_end_alike(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(keeper, "LAST_RETRY", 0.05)
    draw = random.Random(seed)
    workers = [scripted(worker_id=f"w{number}") for number in range(3)]
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        router = await stack.enter_async_context(running_router(*workers, tmp_path=tmp_path))
        await router.ready(3)
        done, made = 0, history(router)
        for _ in range(OPERATIONS):
            if draw.random() < 0.6:
                heal(workers)
            trouble(draw.choice(workers), draw)
            asked = asyncio.create_task(ask(router, workers, made, draw.choice(NAMES)))
            with suppress(OctavoError):
                await operate(router, draw)
                done += 1
            await asked
            if draw.random() < 0.3:  # else the next comes while this is being mended
                await until(lambda: up(router), "all workers")
        assert done >= OPERATIONS // 5
        heal(workers)
        await until(lambda: up(router), "all workers")
        await until(lambda: all(held(worker) == registered(router) for worker in workers), "equal workers")
        await until(lambda: told(router), "the router to know it")
        for name in NAMES:
            known = registered(router).get(name)
            if known is None:
                with pytest.raises(ModelNotFound):
                    await router.service.generate(request(model=name))
            else:
                await router.service.generate(request(model=name, max_tokens=2))
                sent = [s.adapter_digest for w in workers for s in w.now.submits if s.adapter_name == name]
                assert known[0] in sent
