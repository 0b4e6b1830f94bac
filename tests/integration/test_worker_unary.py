"""The worker's other calls, its health, its drain, and how its death is told."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.tokenizer import TokenizerBundle
from shared.types import FinishReason, RejectCode
from shared.wire import worker as wire
from tests.fakes import tiny_tokenizers
from tests.fakes.clock import FakeClock
from tests.fakes.engine import fake_worker, played_router, token_request
from tests.fakes.scripted_worker import until
from worker.scheduler.steptime import StepTimes
from worker.servicer import server as worker_server
from worker.servicer.servicer import PIECE_BYTES, WorkerServicer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def calls(target: str):
    """The Worker stub, and what asks for health."""
    async with rpc.channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def status(service: str = "") -> int:
            return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status

        yield worker_pb2_grpc.WorkerStub(channel), status


async def test_get_info_tells_what_the_worker_is():
    async with fake_worker() as worker, calls(worker.target) as (stub, _):
        assert wire.info_from_pb(await stub.GetInfo(pb.GetInfoRequest())) == worker.hub.info


async def test_the_tokenizer_arrives_whole_in_small_pieces():
    files = {
        **tiny_tokenizers.bundle().files,
        "chat_template.jinja": b"x" * (3 * PIECE_BYTES + 1),
        "added_tokens.json": b"",
    }
    bundle = TokenizerBundle.from_files(files)
    async with fake_worker(bundle=bundle) as worker, calls(worker.target) as (stub, _):
        pieces = [piece async for piece in stub.GetTokenizer(pb.GetTokenizerRequest())]
        assert max(piece.ByteSize() for piece in pieces) <= rpc.FRAME_LIMIT
        assert pieces[0].digest == bundle.digest
        got: dict[str, bytes] = {}
        for piece in pieces:
            got[piece.name] = got.get(piece.name, b"") + piece.data
        assert TokenizerBundle.from_files(got) == bundle


async def test_flush_cache_frees_what_nothing_uses_and_nothing_else():
    async with fake_worker() as worker, played_router(worker) as router, calls(worker.target) as (stub, _):
        await router.submit(token_request(1, 1, length=64))
        await router.finished(1)
        worker.gate.hold()
        running = token_request(2, 2, length=64, max_tokens=40)
        await router.submit(running)
        worker.gate.allow(2)
        await until(lambda: router.tokens(2), "tokens")
        flushed = asyncio.ensure_future(stub.FlushCache(pb.FlushCacheRequest()))
        worker.gate.open()
        assert (await flushed).blocks >= 4
        await router.finished(2)
        assert router.tokens(2) == worker.expected(running)
        again = token_request(3, 3, first=1, length=64)
        await router.submit(again)
        (end,) = await router.finished(3)
        assert end.cached_tokens == 0


async def test_health_is_honest_from_loading_to_serving():
    servicer = WorkerServicer()
    server = await worker_server.start(servicer, "127.0.0.1", 0)
    try:
        async with calls(server.address) as (stub, status):
            assert await status() == NOT_SERVING
            assert await status("octavo.v1.Worker") == NOT_SERVING
            for call in (stub.GetInfo(pb.GetInfoRequest()), stub.Drain(pb.DrainRequest()), stub.Serve()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call if not hasattr(call, "read") else await call.read()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "loading" in str(caught.value.details())
    finally:
        await server.stop(None)
    async with fake_worker() as worker, calls(worker.target) as (_, status):
        assert await status() == await status("octavo.v1.Worker") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status("nonsense")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_hung_step_turns_health_off_and_its_end_turns_it_on():
    """Case C13: work and no step for over five seconds."""
    clock = FakeClock()
    async with (
        fake_worker(clock=clock) as worker,
        played_router(worker) as router,
        calls(worker.target) as (_, status),
    ):
        clock.advance(3_600)  # idle for an hour: no sign of anything
        assert await status() == SERVING
        worker.gate.hold()
        await router.submit(token_request(1, 1))
        await until(lambda: worker.gate.waiting, "a held step")
        clock.advance(4.9)
        assert await status() == SERVING
        load = await router.load(lambda load: load.has_work)
        assert 4_800 <= load.last_step_age_ms <= 5_000
        clock.advance(0.2)
        assert await status() == NOT_SERVING
        assert worker.metric("up") == 0
        await router.load(lambda load: load.last_step_age_ms > 5_000)
        worker.gate.open()
        await router.finished(1)
        await until(worker.hub.serving, "health")
        assert await status() == SERVING


async def test_a_step_is_hung_by_what_its_own_plan_was_expected_to_take():
    """A prompt that takes half a second: not before twenty times that, and told while it runs."""
    clock, times = FakeClock(), StepTimes((0.1, *[0.01] * 5, 0.0, 0.0, 0.0), measured=True)
    async with (
        fake_worker(clock=clock, times=times) as worker,
        played_router(worker) as router,
        calls(worker.target) as (_, status),
    ):
        worker.gate.hold()
        await router.submit(token_request(1, 1, length=40))
        await until(lambda: worker.gate.waiting, "a held step")
        load = await router.load(lambda load: load.predicted_step_ms == pytest.approx(500))
        assert load.has_work
        assert load.running == 0, "the step has not retired"
        assert load.step_us_per_sequence == pytest.approx(10_000)
        clock.advance(9.9)
        assert await status() == SERVING
        clock.advance(0.2)
        assert await status() == NOT_SERVING


async def test_a_dead_engine_ends_streams_as_unavailable_and_health_with_them():
    async with (
        fake_worker() as worker,
        played_router(worker) as router,
        played_router(worker) as idle,
        calls(worker.target) as (stub, status),
    ):

        def die(plan):
            raise SystemExit("the thread is gone")

        worker.gate.fails = die
        await router.submit(token_request(1, 1))
        assert await router.ended() is grpc.StatusCode.UNAVAILABLE
        assert await idle.ended() is grpc.StatusCode.UNAVAILABLE
        assert isinstance(await worker.hub.dead, SystemExit)
        assert await status() == NOT_SERVING
        for call in (stub.FlushCache(pb.FlushCacheRequest()),):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with played_router(worker) as late:
            assert await late.ended() is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_lets_what_runs_finish_and_takes_nothing_new():
    async with (
        fake_worker() as worker,
        played_router(worker) as router,
        calls(worker.target) as (stub, status),
    ):
        worker.gate.hold()
        request = token_request(1, 1, max_tokens=20)
        await router.submit(request)
        await until(lambda: worker.gate.waiting, "a held step")
        drain = asyncio.ensure_future(stub.Drain(pb.DrainRequest(deadline_ms=20_000)))
        (draining,) = await router.came("draining")
        assert draining.deadline_ms == 20_000
        assert await status() == NOT_SERVING
        await router.submit(token_request(2, 2))
        (reject,) = [wire.reject_from_pb(reject) for reject in await router.came("reject")]
        assert (reject.seq, reject.code) == (2, RejectCode.DRAINING)
        load = await router.load(lambda load: load.draining)
        assert load.credits == 0
        assert not drain.done()
        worker.gate.open()
        assert (await drain).unfinished == 0
        await router.finished(1)
        assert router.tokens(1) == worker.expected(request)
        assert not router.over


async def test_a_drain_goes_on_to_its_deadline_where_nobody_waits_for_it_any_more():
    async with fake_worker() as worker, played_router(worker) as router, calls(worker.target) as (stub, _):
        worker.gate.hold()
        await router.submit(token_request(1, 1, length=8, max_tokens=240))
        await until(lambda: worker.gate.waiting, "a held step")
        drain = stub.Drain(pb.DrainRequest(deadline_ms=100))
        await router.came("draining")
        drain.cancel()

        def step_and_look():
            worker.gate.allow(1)
            return router.finish(1)

        end = await until(step_and_look, "the end")
        worker.gate.open()
        assert end.reason is FinishReason.ABORTED


async def test_a_drain_aborts_what_is_left_at_its_deadline():
    """Case C15: every stream gets a terminal message."""
    async with fake_worker() as worker, played_router(worker) as router, calls(worker.target) as (stub, _):
        worker.gate.hold()
        await router.submit(token_request(1, 1, 2, max_tokens=200))
        await until(lambda: worker.gate.waiting, "a held step")
        worker.gate.allow(2)
        await until(lambda: router.tokens(1), "tokens")
        drain = asyncio.ensure_future(stub.Drain(pb.DrainRequest(deadline_ms=0)))
        await router.came("draining")
        worker.gate.open()
        assert (await drain).unfinished == 2
        assert {end.reason for end in await router.finished(1, 2)} == {FinishReason.ABORTED}
        await worker.whole()


async def test_streams_end_in_peace_when_the_worker_closes():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.submit(token_request(1, 1))
        await router.finished(1)
        assert await worker.hub.drain(1.0) == 0
        assert await worker.hub.aclose()
        assert await router.ended() is grpc.StatusCode.OK
        assert router.of("draining")


async def test_reflection_lists_the_service():
    async with fake_worker() as worker, rpc.channel(worker.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answers = [answer async for answer in call]
        names = {service.name for service in answers[0].list_services_response.service}
        assert {"octavo.v1.Worker", "grpc.health.v1.Health"} <= names


async def test_a_taken_port_is_told_with_its_address():
    async with fake_worker() as worker:
        host, _, port = worker.target.rpartition(":")
        with pytest.raises(OSError, match=f"cannot listen on {worker.target}"):
            await worker_server.start(WorkerServicer(), host, int(port))
