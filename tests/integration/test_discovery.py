"""Workers that appear and vanish while a router runs: what they serve, and what becomes of the work that they have."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos import worker_pb2 as pb
from router.fleet.discovery import Pace, where
from shared.errors import ModelNotFound, Unavailable
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, echo, until

QUICK = Pace(resolve=0.002, read=0.002)


class Listed:
    """A file of workers that a test writes."""

    def __init__(self, path: Path):
        self.path = path

    def write(self, *workers: ScriptedWorker) -> None:
        self.path.write_text("".join(f"{worker.target}\n" for worker in workers))


@asynccontextmanager
async def listed_router(tmp_path: Path, *workers: ScriptedWorker) -> AsyncIterator[tuple[Router, Listed]]:
    """A router whose workers stand in a file, of which it knows these."""
    listed = Listed(tmp_path / "workers")
    listed.write(*workers)
    found = where([], listed.path, pace=QUICK)
    async with running_router(found, tmp_path=tmp_path) as router:
        await router.ready(workers=len(workers))
        yield router, listed


def served(router: Router) -> list[tuple[str, int]]:
    return [(card.id, card.workers) for card in router.service.models()]


async def test_workers_of_several_models_come_and_go_and_the_models_are_the_union_of_what_lives(tmp_path: Path) -> None:
    async with (
        ScriptedWorker(worker_id="a", script=echo) as one,
        ScriptedWorker(worker_id="b", script=echo, model="other", model_revision="r2") as two,
        ScriptedWorker(worker_id="c", script=echo) as three,
    ):
        async with listed_router(tmp_path, one) as (router, listed):
            assert served(router) == [("tiny", 1)]
            listed.write(one, two, three)
            await until(lambda: served(router) == [("other", 1), ("tiny", 2)], "the newcomers")
            assert await collect(await router.service.generate(request(20, model="other")))
            assert len(two.now.submits) == 1
            listed.write(two)
            await until(lambda: served(router) == [("other", 1)], "the vanished")
            await until(lambda: one.now.over and three.now.over, "the end of their streams")
            assert router.metric("workers", state="ready") == 1
            assert sum(router.metric("workers", state=state) for state in ("down", "draining", "suspect")) == 0
            with pytest.raises(Unavailable, match="tiny"):
                await router.service.generate(request(20))
            with pytest.raises(ModelNotFound):
                await router.service.generate(request(20, model="never"))


async def test_a_worker_that_vanishes_from_the_list_ends_its_work_in_peace(tmp_path: Path) -> None:
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b", script=echo) as two:
        async with listed_router(tmp_path, one) as (router, listed):
            task = asyncio.create_task(router.service.generate(request(20, 21, max_tokens=2)))
            handle = (await one.submits())[0].choices[0].handle
            one.now.tokens(handle, [20])
            generation = await task
            listed.write(two)
            await until(lambda: router.metric("workers", state="draining") == 1, "the first to be retired")
            await until(lambda: router.metric("workers", state="ready") == 1, "the second")
            assert await collect(await router.service.generate(request(30)))
            assert (len(one.now.submits), len(two.now.submits)) == (1, 1)
            one.now.tokens(handle, [21])
            one.now.finish(handle, 2)
            assert [token for piece in await collect(generation) for token in piece.tokens] == [20, 21]
            await until(lambda: one.now.over, "the end of its stream")
            assert one.conversations == [one.now]


async def test_a_worker_that_comes_back_before_it_was_idle_was_never_away(tmp_path: Path) -> None:
    async with ScriptedWorker(worker_id="a") as one:
        async with listed_router(tmp_path, one) as (router, listed):
            task = asyncio.create_task(router.service.generate(request(20, max_tokens=1)))
            handle = (await one.submits())[0].choices[0].handle
            listed.write()
            await until(lambda: router.metric("workers", state="draining") == 1, "the retirement")
            listed.write(one)
            await until(lambda: router.metric("workers", state="ready") == 1, "the return")
            one.now.tokens(handle, [20])
            one.now.finish(handle, 1)
            assert await collect(await task)
            assert (len(one.conversations), one.now.over) == (1, False)


async def test_a_retired_worker_that_is_lost_loses_no_stream(tmp_path: Path) -> None:
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with listed_router(tmp_path, one) as (router, listed):
            task = asyncio.create_task(router.service.generate(request(20, 21, max_tokens=2)))
            one.now.tokens((await one.submits())[0].choices[0].handle, [20])
            generation = await task
            listed.write(two)
            await until(lambda: router.metric("workers", state="draining") == 1, "the first to be retired")
            await until(lambda: router.metric("workers", state="ready") == 1, "the second")
            one.now.drop()
            resumed = (await two.submits())[0]
            two.now.tokens(resumed.choices[0].handle, [21])
            two.now.finish(resumed.choices[0].handle, 2)
            assert [token for piece in await collect(generation) for token in piece.tokens] == [20, 21]
            await until(lambda: len(router.service._fleet.links) == 1, "the first to be forgotten")


async def test_every_address_of_a_name_is_a_worker_and_a_new_one_is_found(tmp_path: Path) -> None:
    """Both at one port, on two addresses of this machine's."""
    addresses = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "workers.example"
        return addresses

    async with ScriptedWorker(worker_id="a", script=echo) as one:
        found = where([f"dns:///workers.example:{one.port}"], pace=QUICK, resolve=resolve)
        async with running_router(found, tmp_path=tmp_path) as router:
            await router.ready()
            async with ScriptedWorker(worker_id="b", script=echo, host="127.0.0.2", port=one.port) as two:
                addresses = ["127.0.0.1", "127.0.0.2"]
                await until(lambda: served(router) == [("tiny", 2)], "the second")
                addresses = ["127.0.0.2"]
                await until(lambda: served(router) == [("tiny", 1)], "the first to go")
                assert await collect(await router.service.generate(request(20)))
                assert (len(one.now.submits), len(two.now.submits)) == (0, 1)


async def test_a_router_is_not_ready_before_it_knows_where_its_workers_are(tmp_path: Path) -> None:
    known = asyncio.Event()

    async def resolve(host: str, port: int) -> list[str]:
        await known.wait()
        return ["127.0.0.1"]

    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        found = where([one.target, f"dns:///workers.example:{two.port}"], pace=QUICK, resolve=resolve)
        async with running_router(found, tmp_path=tmp_path) as router:
            await until(lambda: router.metric("workers", state="ready") == 1, "the first")
            assert not router.service.ready()
            known.set()
            await router.ready(workers=2)


async def test_workers_that_said_they_would_stop_are_no_sign_of_a_poisonous_request(tmp_path: Path) -> None:
    """Two in a row end with it: neither its fault nor theirs."""

    def stop(conversation, submit) -> None:
        conversation.send(pb.Down(draining=pb.Draining(deadline_ms=0)))
        conversation.drop()

    workers = [ScriptedWorker(worker_id=name, script=stop) for name in "ab"]
    async with workers[0], workers[1], ScriptedWorker(worker_id="c", script=echo) as last:
        async with running_router(*workers, last, tmp_path=tmp_path, resume_wait=60.0) as router:
            await router.ready(workers=3)
            last.now.load(credits=0)
            links = router.service._fleet.links
            await until(lambda: links[2].view(0) is None, "no room at the last")
            task = asyncio.create_task(router.service.generate(request(20, max_tokens=1)))
            await until(lambda: all(len(worker.conversations) > 1 for worker in workers), "both to have stopped")
            for worker in workers:
                worker.script = echo
            assert [link.breaker.state.value for link in links] == ["closed"] * 3
            last.now.load()
            assert await collect(await task)
            assert len(last.now.submits) == 1
