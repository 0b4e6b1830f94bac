"""What a router sees on its stream: welcome, tokens, ends, acks, loads and credits, over real gRPC with the real scheduler."""

import asyncio
from dataclasses import replace

import pytest

from protos import worker_pb2 as pb
from shared import rpc
from shared.types import FinishReason, RejectCode, Tenant
from shared.wire import worker as wire
from tests.fakes.engine import QUICK, fake_worker, played_router, prompt, token_request
from tests.fakes.scripted_worker import until
from worker.engine.engine import STEP_FAILED


async def test_the_first_frame_is_a_welcome_that_tells_what_the_worker_is():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.came("load")
        first = router.frames[0]
        assert first.HasField("welcome")
        assert first.welcome.protocol == wire.PROTOCOL
        assert wire.info_from_pb(first.welcome.info) == worker.hub.info
        assert first.welcome.kv_epoch == worker.hub.epoch > 0


@pytest.mark.parametrize("depth", [0, 1])
async def test_every_choice_gets_its_tokens_and_one_end(depth):
    async with fake_worker(depth=depth) as worker, played_router(worker) as router:
        request = token_request(1, 10, 11, 12, length=50, max_tokens=20)
        await router.submit(request)
        for index, end in enumerate(await router.finished(10, 11, 12)):
            assert router.tokens(10 + index) == worker.expected(request, index)
            assert (end.reason, end.prompt_tokens, end.output_tokens) == (FinishReason.LENGTH, 50, 20)
        await worker.whole()


async def test_a_step_is_one_frame_a_stream():
    async with fake_worker(step_tokens=256) as worker, played_router(worker) as router:
        worker.gate.hold()
        for seq in range(1, 7):
            await router.submit(token_request(seq, seq, length=16, max_tokens=10))
        await router.arrived()
        for number in range(1, 13):  # the first step may have begun before the others came
            worker.gate.allow()
            await until(lambda n=number: worker.hub.engine.stats.step_seq + 1 == n or router.of("finish"), "a step")
            await router.arrived()
        worker.gate.open()
        await router.finished(*range(1, 7))
        batches = router.of("step_batch")
        steps = [batch.step_seq for batch in batches]
        assert len(steps) >= 10
        assert len(set(steps)) == len(steps)
        assert steps == sorted(steps)
        assert max(len(batch.handles) for batch in batches) == 6


async def test_tokens_come_before_their_end_and_nothing_after_it():
    async with fake_worker() as worker, played_router(worker) as router:
        for seq in range(1, 9):
            await router.submit(token_request(seq, seq))
        await router.finished(*range(1, 9))
        over: set[int] = set()
        for frame in router.frames:
            assert not over & set(frame.step_batch.handles)
            if frame.HasField("finish"):
                over.add(frame.finish.handle)


async def test_given_outputs_are_not_sent_again_and_what_follows_is_the_same():
    async with fake_worker() as worker, played_router(worker) as router:
        whole = token_request(1, 1, max_tokens=12)
        await router.submit(whole)
        await router.finished(1)
        outputs = router.tokens(1)
        (choice,) = whole.choices
        resumed = token_request(
            2,
            2,
            first=1,
            max_tokens=12,
            resumed=True,
            choices=(type(choice)(handle=2, index=0, output_tokens=tuple(outputs[:5])),),
        )
        await router.submit(resumed)
        (end,) = await router.finished(2)
        assert router.tokens(2) == outputs[5:]
        assert end.output_tokens == 12


async def test_outputs_made_with_other_numbers_are_not_taken_as_ones_own():
    async with fake_worker() as worker, played_router(worker) as router:
        own = worker.hub.info.numerics_id
        await router.submit(token_request(1, 1, resumed=True, numerics_id=f"not {own}"))
        await router.submit(token_request(2, 2, resumed=True, numerics_id=own))
        await router.submit(token_request(3, 3, resumed=True))
        await router.finished(2, 3)
        (reject,) = [wire.reject_from_pb(reject) for reject in router.of("reject")]
        assert (reject.seq, reject.code, reject.param) == (1, RejectCode.NUMERICS, "numerics_id")
        assert router.tokens(1) == []
        load = await router.load(lambda load: load.acked_seq == 3)
        assert (load.running, load.waiting) == (0, 0)
        await worker.whole()


async def test_logprobs_come_where_they_were_asked_for():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.submit(token_request(1, 1, logprobs=0))
        await router.submit(token_request(2, 2))
        await router.finished(1, 2)
        asked = [d for b in router.of("step_batch") for d in wire.step_from_pb(b).deltas if d.logprobs]
        assert {delta.handle for delta in asked} == {1}
        assert sum(len(delta.logprobs) for delta in asked) == 8


async def test_a_prompt_of_many_frames_is_put_together():
    info = {"max_model_len": 30_000}
    async with fake_worker(info=info, blocks=2_000, step_tokens=4_096) as worker, played_router(worker) as router:
        request = token_request(1, 1, length=25_000, max_tokens=2)
        frames = list(wire.submit_to_pb(request))
        assert len(frames) == 4
        assert all(frame.ByteSize() <= rpc.FRAME_LIMIT for frame in frames)
        await router.submit(request)
        (end,) = await router.finished(1)
        assert end.prompt_tokens == 25_000
        assert router.tokens(1) == worker.expected(request)


async def test_a_prompt_that_cannot_fit_is_rejected_at_once_and_its_parts_are_passed_over():
    async with fake_worker() as worker, played_router(worker) as router:
        too_long, short = token_request(1, 1, length=20_000), token_request(2, 2)
        await router.submit(too_long)
        await router.submit(short)
        await router.finished(2)
        (reject,) = [wire.reject_from_pb(reject) for reject in router.of("reject")]
        assert (reject.seq, reject.code, reject.param) == (1, RejectCode.TOO_LONG, "prompt_tokens")
        assert "20000" in reject.message
        assert "255" in reject.message
        assert worker.metric("tokens_total", kind="prompt") == 20


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt_tokens": ()}, "prompt_tokens"),
        ({"prompt_tokens": (1, 999)}, "prompt_tokens"),
        ({"stop_token_ids": (999,)}, "stop_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"choices": ()}, "choices"),
        ({"tenant": Tenant(id="t", weight=0.0)}, "tenant.weight"),
    ],
)
async def test_a_wrong_request_is_rejected_by_name_and_the_next_one_runs(changes, param):
    async with fake_worker() as worker, played_router(worker) as router:
        await router.submit(token_request(1, 1, **changes))
        await router.submit(token_request(2, 2))
        await router.finished(2)
        (reject,) = [wire.reject_from_pb(reject) for reject in router.of("reject")]
        assert (reject.seq, reject.code, reject.param) == (1, RejectCode.INVALID, param)
        await worker.whole()


async def test_a_handle_in_use_is_refused_to_a_second_request_and_kept_by_the_first():
    """Case C27 on the wire."""
    async with fake_worker() as worker, played_router(worker) as router:
        worker.gate.hold()
        first = token_request(1, 7)
        await router.submit(first)
        await router.submit(token_request(2, 7))
        await router.arrived()
        worker.gate.open()
        (reject,) = await router.came("reject")
        assert (reject.seq, reject.param) == (2, "choices.handle")
        await router.finished(7)
        assert router.tokens(7) == worker.expected(first)


async def test_acks_grow_and_a_load_covers_what_it_acknowledges():
    async with fake_worker(max_running=2, info={"max_running": 2}) as worker, played_router(worker) as router:
        worker.gate.hold()
        for seq in range(1, 6):
            await router.submit(token_request(10 * seq, seq))
        await router.arrived()
        await until(lambda: worker.gate.waiting, "the first step")
        worker.gate.allow(2)  # a turn ends with its step
        load = await router.load(lambda load: load.acked_seq == 50)
        assert load.running + load.waiting == 5
        assert load.has_work
        acked = [batch.acked_seq for batch in router.of("step_batch")] + [load.acked_seq]
        assert acked == sorted(acked)
        worker.gate.open()
        await router.finished(*range(1, 6))
        idle = await router.load(lambda load: not load.has_work)
        assert (idle.running, idle.waiting, idle.context_tokens) == (0, 0, 0)
        assert idle.free_blocks == idle.total_blocks == 64


async def test_loads_come_without_work_too():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.came("load", 4)
        assert not any(load.has_work for load in router.of("load"))


async def test_credits_are_the_free_waiting_places_shared_by_all_streams():
    async with fake_worker(max_waiting=10, max_running=1, info={"max_running": 1}) as worker:
        async with played_router(worker) as one:
            await one.load(lambda load: load.credits == 10)
            async with played_router(worker) as two:
                await one.load(lambda load: load.credits == 5)
                await two.load(lambda load: load.credits == 5)
                worker.gate.hold()
                for seq in range(1, 6):
                    await one.submit(token_request(seq, seq))
                await one.arrived()
                await until(lambda: worker.gate.waiting, "the first step")
                worker.gate.allow(3)
                load = await two.load(lambda load: load.waiting == 4)
                assert load.credits == 3
                worker.gate.open()
                await one.finished(*range(1, 6))
            await one.load(lambda load: load.credits == 10)


async def test_a_full_queue_is_told_with_a_time_to_come_back():
    """Case C19 on the wire."""
    async with (
        fake_worker(max_waiting=2, max_waiting_per_tenant=2, max_running=1, info={"max_running": 1}) as worker,
        played_router(worker) as router,
    ):
        worker.gate.hold()
        for seq in range(1, 9):
            await router.submit(token_request(seq, seq))
        worker.gate.open()
        rejects = [wire.reject_from_pb(reject) for reject in await router.came("reject")]
        assert all(reject.code is RejectCode.QUEUE_FULL for reject in rejects)
        assert all(reject.retry_after_ms for reject in rejects)
        await until(lambda: len(router.of("reject")) + len(router.of("finish")) == 8, "eight answers")
        assert len(router.of("finish")) >= 2
        await worker.whole()


async def test_two_routers_may_use_the_same_handles():
    async with fake_worker() as worker, played_router(worker) as one, played_router(worker) as two:
        first, second = token_request(1, 1, first=1, max_tokens=20), token_request(1, 1, first=2, max_tokens=20)
        await asyncio.gather(one.submit(first), two.submit(second))
        await one.finished(1)
        await two.finished(1)
        assert one.tokens(1) == worker.expected(first)
        assert two.tokens(1) == worker.expected(second)


async def test_a_ping_is_answered():
    async with fake_worker() as worker, played_router(worker) as router:
        await router.send(ping=pb.Ping(nonce=77))
        (pong,) = await router.came("pong")
        assert pong.nonce == 77


async def test_a_step_that_fails_ends_its_requests_and_nothing_else():
    async with fake_worker() as worker, played_router(worker) as router:
        worker.gate.fails = lambda plan: ValueError("boom") if plan.step == 0 else None
        await router.submit(token_request(1, 1))
        (end,) = await router.finished(1)
        assert end.reason is FinishReason.ERROR
        assert end.message == STEP_FAILED
        await router.submit(token_request(2, 2))
        (end,) = await router.finished(2)
        assert end.reason is FinishReason.LENGTH
        assert worker.metric("failed_steps_total") == 1
        assert worker.hub.serving()
        await worker.whole()


async def test_no_frame_is_over_the_limit():
    limits = {"max_model_len": 4_096, "max_running": 400, "vocab_size": 100_000}
    async with (
        fake_worker(
            info=limits, blocks=4_000, step_tokens=8_192, max_waiting=500, max_waiting_per_tenant=500
        ) as worker,
        played_router(worker, kv_events=True) as router,
    ):
        worker.gate.hold()
        for seq in range(1, 401):
            await router.submit(token_request(seq, seq, length=128, logprobs=0, max_tokens=4))
        worker.gate.open()
        await router.finished(*range(1, 401))
        await router.send(snapshot_request=pb.SnapshotRequest())
        await until(lambda: any(piece.last for piece in router.of("kv_snapshot")), "a snapshot")
        assert max(frame.ByteSize() for frame in router.frames) <= rpc.FRAME_LIMIT


async def test_prefix_hits_are_told_and_stay_within_a_salt():
    async with fake_worker() as worker, played_router(worker) as router:
        tokens = prompt(40, 5)
        for seq, salt in ((1, b"a"), (2, b"a"), (3, b"b")):
            tenant = Tenant(id="t", salt=salt)
            await router.submit(token_request(seq, seq, prompt_tokens=tokens, tenant=tenant))
            await router.finished(seq)
        assert [router.finish(seq).cached_tokens for seq in (1, 2, 3)] == [0, 32, 0]
        assert worker.metric("tokens_total", kind="cached") == 32


async def test_new_credit_is_told_at_once_where_the_router_has_spent_its_own():
    """Loads of other changes come never, here: without the urgent one the second request would wait for ever."""
    rare = replace(QUICK, load_interval=1e6, load_gap=1e6, credit_gap=0.0)
    async with (
        fake_worker(settings=rare, max_waiting=1, max_waiting_per_tenant=1) as worker,
        played_router(worker) as router,
    ):
        (first,) = await router.came("load")
        assert first.credits == 1
        for seq in range(1, 6):
            await router.submit(token_request(seq, seq, max_tokens=2))
            await until(lambda seq=seq: router.of("load")[-1].acked_seq == seq, "a Load that grants the next")
            assert router.of("load")[-1].credits == 1
            await router.finished(seq)
        assert len(router.of("load")) == 6
