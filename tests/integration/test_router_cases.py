"""Reported faults of other routers, each by its number in the list of router cases: what is to happen instead, over real streams.

Cases with a home of their own: 1, 3, 4, 5, 9 in tests/unit/placement, 2 in test_dispatch_trouble, 29 in test_dispatch_chaos, 30 in
test_drain; 13, 14, 29, 30 and 32 under real processes in tests/soak/test_fleet_chaos, 17 in tests/soak/test_silent_streams.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from protos import worker_pb2 as pb
from router.placement.prompt import prompt_marks
from router.placement.view import Want
from router.request import GenerateRequest
from shared import rpc
from shared.errors import Overloaded
from shared.hashing import chain
from shared.types import FinishReason, KvSnapshot, Tenant
from shared.wire import worker as wire
from tests.fakes.cable import cable
from tests.fakes.engine import FakeWorker, fake_worker, played_router, token_request
from tests.fakes.router import Router, collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, echo, until

BLOCKS = 2_000


def session(number: int, length: int = 96, max_tokens: int = 2, **changes: object) -> GenerateRequest:
    """A prompt of six blocks that begins like no other's."""
    tokens = tuple(3 + (31 * number + 7 * i + number * i) % 250 for i in range(length))
    return request(*tokens, max_tokens=max_tokens, ignore_eos=True, **changes)


@asynccontextmanager
async def fleet(count: int, **more: object) -> AsyncIterator[list[FakeWorker]]:
    """Workers w0, w1, ... with the real scheduler and cache."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(fake_worker(blocks=BLOCKS, info={"worker_id": f"w{number}"}, **more))
            for number in range(count)
        ]


async def placed(router: Router, one: GenerateRequest) -> tuple[str, int]:
    """Where it went, and how much of its prompt was cached there."""
    generation = await router.service.generate(one)
    await collect(generation)
    return generation._flight.worker_id, generation.usage.cached_tokens


async def told(worker: FakeWorker, router: Router) -> None:
    """Until the router has heard of all that the worker's cache holds, and of how it stands."""
    worker_id = worker.hub.info.worker_id
    links = router.service._fleet.links
    link = next(link for link in links if link.worker and link.worker.info.worker_id == worker_id)

    def heard() -> bool:
        load, stats = link.worker.stream.liveness.load, worker.hub.engine.stats
        known = link.member.hashes == set(worker.hub.engine._engine._scheduler.published())
        now = (stats.running, stats.cold_admissions, pytest.approx(stats.prefill_tokens_per_s))
        settled = known and not any(link.worker.stream.pending)
        return settled and (load.running, load.cold_admissions, load.prefill_tokens_per_s) == now

    await until(heard, "the router's view")


async def test_router_case_6_what_a_request_costs_in_sync_does_not_grow_with_what_is_cached(tmp_path: Path) -> None:
    async with fake_worker(blocks=BLOCKS) as worker, played_router(worker, kv_events=True) as router:
        await router.send(snapshot_request=pb.SnapshotRequest())
        await router.came("kv_snapshot")
        deltas, beyond = [], []  # of each request: its frames, and their bytes beside the hashes

        def added() -> int:
            return sum(len(delta.added) for delta in router.of("kv_delta"))

        for number in range(1, 101):
            before = len(router.frames)
            await router.submit(token_request(number, number, length=128, first=number, max_tokens=2))
            await router.finished(number)
            await router.arrived()
            await until(lambda number=number: added() == 16 * 2 * number, "the delta")
            told = [frame for frame in router.frames[before:] if frame.HasField("kv_delta")]
            deltas.append(len(told))
            beyond += [frame.ByteSize() - len(frame.kv_delta.added) for frame in told]
        assert max(deltas) <= 2, "a block's hash is told when it is full, and two became full"
        assert max(beyond) <= 24
        assert len(router.of("kv_snapshot")) == 1
        assert max(frame.ByteSize() for frame in router.frames) <= rpc.FRAME_LIMIT


async def test_router_cases_7_31_and_c53_a_second_router_finds_what_the_first_has_placed(tmp_path: Path) -> None:
    async with fleet(4) as workers:
        targets = [worker.target for worker in workers]
        async with running_router(*targets, tmp_path=tmp_path / "a") as first:
            await first.ready(workers=4)
            homes = [home for home, _ in await asyncio.gather(*(placed(first, session(n)) for n in range(40)))]
            assert len(set(homes)) > 1, "what comes at once is spread"
            for worker in workers:
                await told(worker, first)
        async with running_router(*targets, tmp_path=tmp_path / "b") as second:
            await second.ready(workers=4)
            for worker in workers:
                await told(worker, second)
            found = [await placed(second, session(number)) for number in range(40)]
        assert sum(home == worker_id for home, (worker_id, _) in zip(homes, found, strict=True)) >= 38
        assert sum(cached for _, cached in found) >= 0.95 * 40 * 64


async def test_c53_two_routers_with_one_view_decide_alike(tmp_path: Path) -> None:
    async with fleet(4) as workers:
        targets = [worker.target for worker in workers]
        async with (
            running_router(*targets, tmp_path=tmp_path / "a") as one,
            running_router(*targets, tmp_path=tmp_path / "b") as other,
        ):
            alike = 0
            for router in (one, other):
                await router.ready(workers=4)
            for number in range(30):  # they take turns, over what is new and what one of them has asked
                await placed(one if number % 2 else other, session(number % 10, length=96 + 32 * (number // 10)))
                for worker in workers:
                    await worker.whole()
                    await told(worker, one)
                    await told(worker, other)
                decisions = {decide(router, session(number % 10, length=96)) for router in (one, other)}
                alike += len(decisions) == 1
            assert alike == 30


def decide(router: Router, one: GenerateRequest) -> str:
    """Where a router would send this now."""
    dispatcher = router.service._dispatcher
    views = [view for link in router.service._fleet.links if (view := link.view(0.0))]
    key, hashes = prompt_marks(chain(model_revision="r1"), one.prompt.tokens)
    want = Want(key=key, hashes=hashes, prompt_tokens=len(one.prompt.tokens), choices=1)
    return dispatcher._placing.choose(views, want, max_tokens=2)[0]


async def test_router_case_8_a_late_router_is_not_ready_before_it_has_a_snapshot(tmp_path: Path) -> None:
    worker = ScriptedWorker(script=echo)
    worker.snapshots = False
    async with worker, running_router(worker, tmp_path=tmp_path) as router:
        await until(lambda: worker.conversations and worker.now.of("snapshot_request"), "the request")
        await until(lambda: len(worker.now.of("ping")) > 0, "the stream's life")
        assert not router.service.ready()
        assert router.service.models() == []
        hashes = tuple(bytes([number]) * 16 for number in range(3))
        worker.now.send(wire.kv_snapshot_to_pb(KvSnapshot(epoch=1, sequence=7, hashes=hashes[:2], last=False)))
        worker.now.send(wire.kv_snapshot_to_pb(KvSnapshot(epoch=1, sequence=7, hashes=hashes[2:], last=True)))
        await router.ready()
        assert len(router.service._fleet.index) == 3


async def test_router_case_10_overload_is_a_queue_and_429_and_opens_no_breaker(tmp_path: Path) -> None:
    async with fake_worker(blocks=BLOCKS) as worker:
        async with running_router(worker.target, tmp_path=tmp_path, max_queued=256) as router:
            await router.ready()

            async def one(number: int) -> str:
                try:
                    asked = session(number, length=16, tenant=Tenant(id=f"t{number % 8}"))
                    await collect(await router.service.generate(asked))
                except Overloaded as error:
                    return "no time told" if error.retry_after is None else "overloaded"
                return "ok"

            worker.gate.hold()
            tasks = [asyncio.create_task(one(number)) for number in range(2_048)]
            await until(lambda: sum(task.done() for task in tasks) > 1_000, "refusals")
            worker.gate.open()
            ends = await asyncio.gather(*tasks)
            assert set(ends) == {"ok", "overloaded"}
            assert ends.count("ok") >= 256
            (link,) = router.service._fleet.links
            assert link.breaker.state.value == "closed"
            assert router.metric("workers", state="ready") == 1
            await worker.whole()


async def test_router_case_11_a_worker_that_keeps_failing_gets_nothing_then_a_probe(tmp_path: Path) -> None:
    def fail(conversation, submit) -> None:
        conversation.load()
        conversation.finish(submit.choices[0].handle, 0, FinishReason.ERROR, message="broken")

    async with ScriptedWorker(script=fail, worker_id="a") as bad, ScriptedWorker(script=echo, worker_id="b") as good:
        async with running_router(bad, good, tmp_path=tmp_path, policy="round_robin") as router:
            await router.ready(workers=2)
            for number in range(40):
                assert await collect(await router.service.generate(request(20 + number, max_tokens=1)))
            assert len(bad.now.submits) == 3  # the threshold
            assert router.metric("workers", state="broken") == 1
            router.clock.advance(1.1)  # the pause
            for worker in (bad, good):
                worker.now.load(step_seq=5)
            links = router.service._fleet.links
            await until(lambda: all(link.worker.stream.liveness.load.step_seq == 5 for link in links), "the reports")
            for number in range(20):
                assert await collect(await router.service.generate(request(20 + number, max_tokens=1)))
            assert len(bad.now.submits) == 4  # the probe
            bad.script = echo
            router.clock.advance(2.1)  # twice the pause
            for worker in (bad, good):
                worker.now.load(step_seq=6)
            await until(lambda: all(link.worker.stream.liveness.load.step_seq == 6 for link in links), "the reports")
            for number in range(20):
                assert await collect(await router.service.generate(request(20 + number, max_tokens=1)))
            assert router.metric("workers", state="ready") == 2
            assert len(bad.now.submits) > 5


async def test_router_case_12_a_worker_that_hangs_holds_up_nobody_elses_requests(tmp_path: Path) -> None:
    async with fake_worker(info={"worker_id": "a"}) as hung, fake_worker(info={"worker_id": "b"}) as other:
        async with cable(hung.target) as between:
            async with running_router(between.target, other.target, tmp_path=tmp_path, resume_wait=60.0) as router:
                await router.ready(workers=2)
                between.pull()
                await until(
                    lambda: router.clock.advance(0.02) or router.metric("workers", state="suspect"), "the silence"
                )
                for number in range(30):
                    worker_id, _ = await placed(router, session(number))
                    assert worker_id == "b"
                assert hung.hub.engine.stats.running == 0


async def test_router_case_13_a_killed_worker_gets_nothing_and_what_comes_in_its_place_does(tmp_path: Path) -> None:
    async with ScriptedWorker(script=echo, worker_id="a") as one, ScriptedWorker(script=echo, worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path, policy="round_robin") as router:
            await router.ready(workers=2)
            await one.stop()
            await until(lambda: router.metric("workers", state="down") == 1, "the loss")
            for number in range(6):
                assert await collect(await router.service.generate(request(20 + number, max_tokens=1)))
            assert (len(one.now.submits), len(two.now.submits)) == (0, 6)
            assert [card.workers for card in router.service.models()] == [1]
            async with ScriptedWorker(script=echo, worker_id="c", port=one.port) as new:
                await router.ready(workers=2)
                for number in range(4):
                    assert await collect(await router.service.generate(request(20 + number, max_tokens=1)))
                assert len(new.now.submits) >= 1


@pytest.mark.parametrize("phase", ["queued in the router", "queued at the worker", "prefill", "decode", "finished"])
async def test_router_cases_15_and_16_whoever_leaves_in_any_phase_leaves_nothing(tmp_path: Path, phase: str) -> None:
    limits = {"max_running": 1, "max_waiting": 1, "max_waiting_per_tenant": 1, "info": {"max_running": 1}}
    async with fake_worker(step_tokens=32, **limits) as worker:
        async with running_router(worker.target, tmp_path=tmp_path) as router:
            await router.ready()
            worker.gate.hold()
            ahead = {"queued in the router": 2, "queued at the worker": 1}.get(phase, 0)
            others = [asyncio.create_task(placed(router, session(number))) for number in range(ahead)]
            await until(lambda: router.service._dispatcher.flights == ahead and (not ahead or worker.gate.waiting), "")
            task = asyncio.create_task(router.service.generate(session(9, length=96, max_tokens=20)))
            await until(lambda: router.service._dispatcher.flights == ahead + 1, "the request")
            if phase in ("prefill", "decode"):
                worker.gate.allow(1 if phase == "prefill" else 4)
                await until(lambda: worker.gate.waiting, "the steps")
            if phase == "finished":
                worker.gate.open()
                generation = await task
                await collect(generation)
                await generation.aclose()
            elif task.done():
                await (await task).aclose()
            else:
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await task.result().aclose()
            worker.gate.open()
            await asyncio.gather(*others)
            await worker.whole()
            assert router.service._dispatcher.flights == 0
            assert (
                router.metric("requests_in_flight", model="tiny") == router.metric("requests_queued", model="tiny") == 0
            )
            assert all(link.worker.stream.open_requests == 0 for link in router.service._fleet.links)


async def test_router_case_20_what_is_predicted_is_what_the_worker_finds_for_each_salt(tmp_path: Path) -> None:
    async with fleet(2) as workers:
        async with running_router(*(worker.target for worker in workers), tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            tenants = [Tenant(id=name, salt=salt) for name, salt in (("a", b"1"), ("b", b"2"), ("c", b""))]
            found = []
            for again in range(2):
                for tenant in tenants:
                    generation = await router.service.generate(session(1, length=160, tenant=tenant))
                    flight = generation._flight
                    await collect(generation)
                    marks = flight.job.marks
                    for worker in workers:
                        await worker.whole()
                        await told(worker, router)
                    predicted = router.service._fleet.index.match(marks.hashes)
                    assert predicted == {flight.worker_id: 128}
                    found.append((again, generation.usage.cached_tokens))
            assert found == [(0, 0)] * 3 + [(1, 144)] * 3
