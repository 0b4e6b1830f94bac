"""Placement by session: what a client names one goes to one worker, whatever its prompts; names of two tenants are two."""

import asyncio
from pathlib import Path

from router.tenancy.caller import Caller
from shared.types import Tenant
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, echo, until

TURNS = 6


async def _turns(router: Router, key: str, caller: Caller | None = None) -> None:
    """Requests that have nothing but the key in common."""
    more = {"caller": caller} if caller else {}
    for turn in range(TURNS):
        tokens = [10 + (31 * turn + place) % 90 for place in range(20)]
        await collect(await router.service.generate(request(*tokens, prompt_cache_key=key, **more)))


def _counts(*workers: ScriptedWorker) -> list[int]:
    return [len(worker.now.submits) for worker in workers]


async def test_what_bears_one_key_goes_to_one_worker_and_tenants_keys_are_their_own(tmp_path: Path) -> None:
    async with (
        ScriptedWorker(worker_id="a", script=echo) as a,
        ScriptedWorker(worker_id="b", script=echo) as b,
        ScriptedWorker(worker_id="c", script=echo) as c,
        running_router(a, b, c, tmp_path=tmp_path, policy="session") as router,
    ):
        await router.ready(workers=3)
        workers = a, b, c
        homes = set()
        for key in map(str, range(12)):
            before = _counts(*workers)
            await _turns(router, key)
            came = [after - earlier for after, earlier in zip(_counts(*workers), before, strict=True)]
            assert sorted(came) == [0, 0, TURNS], key
            homes.add(came.index(TURNS))
        assert homes == {0, 1, 2}

        owners = set()
        for name in map(str, range(12)):
            before = _counts(*workers)
            await _turns(router, "the same", Caller(tenant=Tenant(id=name, salt=name.encode() * 16)))
            came = [after - earlier for after, earlier in zip(_counts(*workers), before, strict=True)]
            assert sorted(came) == [0, 0, TURNS], name
            owners.add(came.index(TURNS))
        assert owners == {0, 1, 2}


async def test_a_session_leaves_a_worker_that_is_much_busier_than_the_others(tmp_path: Path) -> None:
    async with (
        ScriptedWorker(worker_id="a") as a,
        ScriptedWorker(worker_id="b") as b,
        running_router(a, b, tmp_path=tmp_path, policy="session") as router,
    ):
        await router.ready(workers=2)

        async def ask() -> None:
            await collect(await router.service.generate(request(10, 11, 12, prompt_cache_key="one")))

        tasks = [asyncio.create_task(ask()) for _ in range(10)]
        await until(lambda: sum(_counts(a, b)) == len(tasks), "all of them")
        assert min(_counts(a, b)) >= 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
