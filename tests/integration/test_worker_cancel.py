"""Whatever ends a request early, or a router's stream, gives everything back at once. Cases C16 and C17 on the wire, and more."""

import asyncio

import grpc
import pytest

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from shared import rpc
from shared.types import AbortReason, FinishReason, TokenLogprobs
from shared.wire import worker as wire
from tests.fakes.clock import FakeClock
from tests.fakes.engine import QUICK, FakeWorker, PlayedRouter, fake_worker, played_router, prompt, token_request
from tests.fakes.scripted_worker import until
from worker.plan import StepPlan, StepResult
from worker.servicer.settings import StreamSettings

PHASES = ("queued", "prefill", "decode")


async def _held(worker: FakeWorker) -> None:
    """Wait until a step stands before the gate."""
    await until(lambda: worker.gate.waiting, "a held step")


async def _into(phase: str, worker: FakeWorker, router: PlayedRouter) -> None:
    """Handles 1 to 3 are in this phase, and a step is held."""
    worker.gate.hold()
    if phase == "queued":
        await router.submit(token_request(1, 9, length=100, max_tokens=100))
        await _held(worker)
    await router.submit(token_request(2, 1, 2, 3, length=150, max_tokens=60))
    await _held(worker)
    if phase == "decode":
        worker.gate.allow(6)
        await until(lambda: len(router.tokens(3)) > 1, "decode")
        await _held(worker)
    elif phase == "prefill":
        worker.gate.allow()
        await router.load(lambda load: load.running == 3)
        await _held(worker)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
async def test_an_abort_frees_everything_within_a_step_c16(phase, depth):
    running = 3 if phase == "queued" else 8
    async with (
        fake_worker(depth=depth, max_running=running, info={"max_running": running}) as worker,
        played_router(worker) as router,
    ):
        await _into(phase, worker, router)
        before = worker.hub.engine.stats.step_seq
        await router.call.write(wire.abort_to_pb([1, 2, 3], AbortReason.CLIENT))
        if phase == "queued":
            await router.call.write(wire.abort_to_pb([9], AbortReason.CLIENT))
        await router.arrived()  # from here on, steps count
        worker.gate.allow(2 + depth)
        ends = await router.finished(1, 2, 3)
        assert {end.reason for end in ends} == {FinishReason.ABORTED}
        await worker.whole()
        assert worker.hub.engine.stats.step_seq - before <= 1 + depth


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_stream_aborts_its_requests_within_a_step_c17(phase):
    running = 3 if phase == "queued" else 8
    async with fake_worker(max_running=running, info={"max_running": running}) as worker:
        async with played_router(worker) as router:
            await _into(phase, worker, router)
            before = worker.hub.engine.stats.step_seq
            router.call.cancel()
            await until(lambda: worker.metric("routers") == 0, "the stream's end")
            worker.gate.allow()
            await worker.whole()
            assert worker.hub.engine.stats.step_seq - before <= 1


async def test_a_stream_whose_router_is_gone_aborts_its_requests_and_leaves_others_alone():
    async with fake_worker() as worker, played_router(worker) as stays:
        worker.gate.hold()
        kept = token_request(1, 1, max_tokens=30)
        await stays.submit(kept)
        async with rpc.channel(worker.target) as channel:
            call = worker_pb2_grpc.WorkerStub(channel).Serve()
            await call.write(pb.Up(hello=pb.Hello(protocol=wire.PROTOCOL, router_id="gone")))
            for frame in wire.submit_to_pb(token_request(1, 1, first=9, max_tokens=200)):
                await call.write(frame)
            await stays.arrived()
            await until(lambda: worker.hub.engine._sent >= 2, "both requests")
        await until(lambda: worker.metric("routers") == 1, "the stream's end")
        worker.gate.open()
        await stays.finished(1)
        assert stays.tokens(1) == worker.expected(kept)
        await worker.whole()


async def test_a_router_that_closes_its_side_has_left():
    async with fake_worker() as worker, played_router(worker) as router:
        worker.gate.hold()
        await router.submit(token_request(1, 1, max_tokens=100))
        await _held(worker)
        await router.call.done_writing()
        await until(lambda: worker.metric("routers") == 0, "the stream's end")
        worker.gate.open()
        assert await router.ended() is grpc.StatusCode.OK
        await worker.whole()


async def test_a_stop_string_found_by_the_router_ends_a_choice_as_stopped():
    async with fake_worker() as worker, played_router(worker) as router:
        worker.gate.hold()
        await router.submit(token_request(1, 1, 2, max_tokens=40))
        worker.gate.allow(3)
        await until(lambda: router.tokens(1), "tokens")
        await router.call.write(wire.abort_to_pb([1], AbortReason.STOPPED))
        await router.arrived()
        worker.gate.open()
        stopped, other = await router.finished(1, 2)
        assert stopped.reason is FinishReason.STOP
        assert (other.reason, other.output_tokens) == (FinishReason.LENGTH, 40)


async def test_an_abort_of_what_is_not_there_is_passed_over():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.call.write(wire.abort_to_pb([5, 6], AbortReason.CLIENT))
        await router.submit(token_request(1, 1))
        await router.finished(1)
        await router.call.write(wire.abort_to_pb([1], AbortReason.CLIENT))
        await router.submit(token_request(2, 2))
        await router.finished(2)
        assert len(router.of("finish")) == 2


async def test_an_abort_reaches_a_request_whose_prompt_is_not_whole():
    info = {"max_model_len": 30_000}
    async with fake_worker(info=info, blocks=2_000, step_tokens=4_096) as worker, played_router(worker) as router:
        request = token_request(1, 1, 2, length=20_000, max_tokens=2)
        first, second, third = wire.submit_to_pb(request)
        await router.call.write(first)
        await router.call.write(wire.abort_to_pb([1], AbortReason.CLIENT))
        await router.call.write(second)
        await router.call.write(third)
        one, two = await router.finished(1, 2)
        assert (one.reason, two.reason) == (FinishReason.ABORTED, FinishReason.LENGTH)
        request = token_request(2, 3, 4, length=20_000, max_tokens=2)
        first, second, third = wire.submit_to_pb(request)
        await router.call.write(first)
        await router.call.write(wire.abort_to_pb([3, 4], AbortReason.CLIENT))
        for end in await router.finished(3, 4):
            assert (end.reason, end.prompt_tokens, end.output_tokens) == (FinishReason.ABORTED, 20_000, 0)
        await router.call.write(second)
        await router.call.write(third)
        await router.load(lambda load: load.acked_seq == 2)
        await worker.whole()


async def test_a_deadline_ends_a_request_in_the_queue_too():
    clock = FakeClock()
    async with (
        fake_worker(clock=clock, max_running=1, info={"max_running": 1}) as worker,
        played_router(worker) as router,
    ):
        worker.gate.hold()
        await router.submit(token_request(1, 1, max_tokens=4))
        await router.submit(token_request(2, 2, max_tokens=4, remaining_ms=300))
        await router.arrived()
        await _held(worker)
        worker.gate.allow(2)
        await router.load(lambda load: load.acked_seq == 2)
        clock.advance(1.0)
        worker.gate.open()
        one, two = await router.finished(1, 2)
        assert (one.reason, two.reason) == (FinishReason.LENGTH, FinishReason.DEADLINE)


async def test_a_silent_router_is_dropped_and_a_pinging_one_is_not():
    clock = FakeClock()
    settings = StreamSettings(load_interval=0.05, load_gap=0.002, tick=0.005, stall_after=1e9)
    async with fake_worker(clock=clock, settings=settings) as worker:
        async with played_router(worker) as silent, played_router(worker) as lively:
            worker.gate.hold()
            await silent.submit(token_request(1, 1, max_tokens=100))
            await _held(worker)
            await lively.came("load")
            for nonce in range(1, 8):
                clock.advance(0.9)
                await lively.send(ping=pb.Ping(nonce=nonce))
                await lively.came("pong", nonce)
            assert await silent.ended() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "silent" in str(silent.error.details())
            assert not lively.over
            worker.gate.open()
            await worker.whole()


class Talkative:
    """Gives every row the same token and the most logprobs."""

    depth = 0

    def execute(self, plan: StepPlan) -> "Talkative":
        rows = len(plan.samples)
        top = tuple((token, -float(token)) for token in range(20))
        self.outcome = StepResult(
            tokens=[5] * rows, logprobs=[TokenLogprobs(sampled=-1.0, top=top)] * rows, errors=[None] * rows
        )
        return self

    def result(self) -> StepResult:
        return self.outcome


async def test_a_router_that_does_not_read_is_dropped_after_256_undelivered_frames():
    async with (
        fake_worker(info={"max_model_len": 1 << 14, "max_running": 16}, blocks=60_000) as worker,
        played_router(worker) as well,
        played_router(worker, listen=False) as stuck,
    ):
        inner, worker.gate.inner = worker.gate.inner, Talkative()
        worker.gate.hold()  # else it may be dropped while it still writes
        for handle in range(1, 17):
            await stuck.submit(token_request(handle, handle, length=4, max_tokens=1 << 13, logprobs=20))
        worker.gate.open()
        await until(lambda: worker.metric("routers") == 1, "the stuck router's end")
        await worker.whole()
        await worker.hub.engine.flush_cache()  # what was written without being computed
        worker.gate.inner = inner
        request = token_request(1, 1)
        await well.submit(request)
        await well.finished(1)
        assert well.tokens(1) == worker.expected(request)
        stuck.listen()
        assert await stuck.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "256 undelivered" in str(stuck.error.details())


async def test_a_router_that_ends_hundreds_of_requests_at_once_is_not_slow():
    async with (
        fake_worker(max_waiting=600, max_waiting_per_tenant=600) as worker,
        played_router(worker) as router,
    ):
        worker.gate.hold()
        handles = range(1, 501)
        for handle in handles:
            await router.submit(token_request(handle, handle, length=4, max_tokens=100))
        await router.call.write(wire.abort_to_pb(list(handles), AbortReason.CLIENT))
        worker.gate.open()
        await router.finished(*handles)
        assert not router.over
        await worker.whole()


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        ([pb.Up(ping=pb.Ping(nonce=1))], "Hello"),
        ([pb.Up(hello=pb.Hello(protocol=2))], "protocol"),
        ([pb.Up(hello=pb.Hello(protocol=1)), pb.Up(hello=pb.Hello(protocol=1))], "hello"),
        ([pb.Up(hello=pb.Hello(protocol=1)), pb.Up()], "unknown"),
        ([pb.Up(hello=pb.Hello(protocol=1)), pb.Up(submit=pb.Submit(seq=0))], "seq"),
        (
            [pb.Up(hello=pb.Hello(protocol=1)), *[pb.Up(submit=pb.Submit(seq=5, prompt_len=3)) for _ in range(2)]],
            "seq must increase",
        ),
        ([pb.Up(hello=pb.Hello(protocol=1)), pb.Up(submit_part=pb.SubmitPart(seq=1, prompt_tokens=[1]))], "part"),
        (
            [pb.Up(hello=pb.Hello(protocol=1)), pb.Up(submit=pb.Submit(seq=1, prompt_len=1, prompt_tokens=[1, 2]))],
            "prompt_len",
        ),
        (
            [
                pb.Up(hello=pb.Hello(protocol=1)),
                *[pb.Up(submit=pb.Submit(seq=seq, prompt_len=9)) for seq in range(1, 18)],
            ],
            "wait for their parts",
        ),
        (
            [pb.Up(hello=pb.Hello(protocol=1)), pb.Up(submit=pb.Submit(seq=1, prompt_tokens=[1 << 31] * 14_000))],
            "65536",
        ),
    ],
)
async def test_a_broken_protocol_ends_that_stream_alone(frames, named):
    async with fake_worker() as worker, played_router(worker) as other, rpc.channel(worker.target) as channel:
        call = worker_pb2_grpc.WorkerStub(channel).Serve()
        broken = PlayedRouter(call)
        broken.listen()
        for frame in frames:
            if broken.over:
                break
            try:
                await call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                break
        assert await broken.ended() is grpc.StatusCode.INVALID_ARGUMENT
        assert named in str(broken.error.details())
        await other.submit(token_request(1, 1))
        await other.finished(1)
        await broken.close()


async def test_a_stream_without_a_hello_does_not_stay_for_ever():
    settings = StreamSettings(hello_timeout=0.02)
    async with fake_worker(settings=settings) as worker, rpc.channel(worker.target) as channel:
        router = PlayedRouter(worker_pb2_grpc.WorkerStub(channel).Serve())
        router.listen()
        assert await router.ended() is grpc.StatusCode.DEADLINE_EXCEEDED
        await router.close()


async def test_half_of_many_routers_vanish_at_random_and_nothing_stays():
    async with fake_worker(max_running=4, blocks=40, settings=QUICK) as worker:

        async def visit(number: int) -> None:
            async with played_router(worker) as router:
                requests = [token_request(seq, seq, length=30, first=number, max_tokens=12) for seq in (1, 2)]
                for request in requests:
                    await router.submit(request)
                if number % 2:
                    await until(lambda: len(router.tokens(1)) >= number % 5, "some tokens")
                    return
                await router.finished(1, 2)
                for request in requests:
                    assert router.tokens(request.seq) == worker.expected(request)

        await asyncio.gather(*map(visit, range(12)))
        await until(lambda: worker.metric("routers") == 0, "no routers")
        await worker.whole()
        assert worker.metric("running") == worker.metric("waiting") == 0


def test_prompts_of_the_fake_differ():
    assert prompt(20, 1)[:16] != prompt(20, 2)[:16]
