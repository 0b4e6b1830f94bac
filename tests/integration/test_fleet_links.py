"""The router's streams to workers: connecting, tokenizers, liveness, and workers that misbehave."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from router.request import TextPrompt, TokenPrompt
from shared import rpc
from shared.errors import Unavailable
from tests.fakes import tiny_tokenizers
from tests.fakes.router import QUICK, Router, collect, request, running_router, text_of
from tests.fakes.scripted_worker import BOUND, ScriptedWorker, echo, load_report, until


async def test_a_worker_that_comes_later_is_found(tmp_path):
    async with ScriptedWorker(script=echo) as worker:
        await worker.stop()
        async with running_router(worker, tmp_path=tmp_path) as router:
            assert not router.service.ready()
            assert router.service.models() == []
            async with worker:
                await router.ready()
                assert [card.id for card in router.service.models()] == ["tiny"]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of addresses where no worker is."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("no worker at ")]


async def test_an_address_where_nobody_listens_is_in_the_log_once_and_again_when_a_worker_has_gone(tmp_path, caplog):
    async with ScriptedWorker(script=echo) as worker:
        await worker.stop()
        async with running_router(worker, tmp_path=tmp_path) as router:
            said = await until(lambda: complaints(caplog), "a line in the log")
            assert worker.target in said[0]
            assert "UNAVAILABLE" in said[0]
            async with worker:
                await router.ready()
                assert len(complaints(caplog)) == 1
            await until(lambda: len(complaints(caplog)) == 2, "a second line")


async def test_an_address_where_something_else_listens_is_in_the_log_once_with_what_is_wrong(tmp_path, caplog):
    asked: list[str] = []

    class Counting(grpc.aio.ServerInterceptor):  # type: ignore[misc]
        async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
            asked.append(details.method)
            return await continuation(details)

    server = grpc.aio.server(interceptors=[Counting()])
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with running_router(target, tmp_path=tmp_path):
            await until(lambda: len(asked) > 3, "several tries")
        assert len(complaints(caplog)) == 1
        assert f"no worker at {target}, trying again: what listens there is no worker" in complaints(caplog)[0]
    finally:
        await server.stop(None)


class Loading(worker_pb2_grpc.WorkerServicer):
    """A worker whose model is not there yet."""

    def __init__(self) -> None:
        self.asked = 0

    async def Serve(self, requests: Any, context: Any) -> Any:
        self.asked += 1
        await rpc.abort(context, Unavailable("the model is still loading"))
        yield


async def test_a_worker_that_still_loads_is_in_the_log_once_and_is_no_warning(tmp_path, caplog):
    caplog.set_level("INFO")
    server, loading = rpc.server(receive_limit=rpc.INTERNAL_RECEIVE_LIMIT), Loading()
    worker_pb2_grpc.add_WorkerServicer_to_server(loading, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with running_router(target, tmp_path=tmp_path):
            await until(lambda: loading.asked > 3, "several tries")
        assert complaints(caplog) == [f"no worker at {target}, trying again: UNAVAILABLE: the model is still loading"]
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
    finally:
        await server.stop(None)


@pytest.mark.parametrize(("draining", "level"), [(True, "INFO"), (False, "WARNING")])
async def test_the_end_of_a_worker_that_said_so_is_no_warning(draining, level, tmp_path, caplog):
    caplog.set_level("INFO")
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        if draining:
            worker.now.send(pb.Down(draining=pb.Draining()))
        worker.now.drop()
        start = f"worker {worker.target}: "
        said = await until(lambda: [each for each in caplog.records if each.getMessage().startswith(start)], "its end")
        assert said[0].levelname == level


async def test_hello_comes_first_and_a_ping_follows(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path):
        await until(lambda: worker.conversations and worker.now.of("ping"), "a ping")
        first = worker.now.received[0].hello
        assert first.protocol == 1
        assert first.router_id


async def test_a_tokenizer_is_fetched_once_for_all_workers_and_kept_on_disk(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        for _ in range(2):
            async with running_router(one, two, tmp_path=tmp_path) as router:
                await router.ready(workers=2)
                assert await router.service.tokenize("tiny", TextPrompt(text="hi"))
        assert one.tokenizer_calls + two.tokenizer_calls == 1


async def test_a_broken_cache_is_mended(tmp_path):
    async with ScriptedWorker() as worker:
        path = tmp_path / "cache" / worker.bundle.digest
        path.mkdir(parents=True)
        (path / "tokenizer.json").write_bytes(b"{}")
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
        assert (path / "tokenizer.json").read_bytes() == worker.bundle.files["tokenizer.json"]


async def test_a_tokenizer_that_is_not_what_its_digest_names_is_not_served(tmp_path):
    async with ScriptedWorker(tokenizer_digest="0" * 32) as liar, running_router(liar, tmp_path=tmp_path) as router:
        await until(lambda: len(liar.conversations) > 2, "another try")
        assert router.service.models() == []


async def test_a_worker_that_starts_again_is_a_new_worker(tmp_path):
    async with ScriptedWorker(script=echo, worker_id="first") as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            await worker.stop()
            await until(lambda: not router.service.models(), "the loss")
            async with ScriptedWorker(script=echo, worker_id="second", port=worker.port):
                await router.ready()
                generation = await router.service.generate(request(20, 21))
                assert len(await collect(generation)) > 0


async def test_two_revisions_under_one_name_are_two_pools(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b", model_revision="r2") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            assert [(card.id, card.workers) for card in router.service.models()] == [("tiny", 2)]
            pool = router.service._fleet.resolve("tiny")
            assert (pool.key.revision, pool.workers) == ("r2", 1)


async def test_a_silent_worker_gets_nothing_after_2_s_and_is_given_up_after_5(tmp_path):
    async with ScriptedWorker(worker_id="a") as silent, ScriptedWorker(worker_id="b") as other:
        async with running_router(silent, other, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            generate = asyncio.create_task(router.service.generate(request(20, 21, max_tokens=2)))
            await until(lambda: silent.now.submits or other.now.submits, "the first submit")
            first, second = (silent, other) if silent.now.submits else (other, silent)
            for second_number in range(1, 6):
                await report(router, second, step_seq=second_number)
                router.clock.advance(1.0)
                if second_number == 2:
                    await until(lambda: router.metric("workers", state="suspect") == 1, "suspicion")
                    assert not first.now.over
            await report(router, second, step_seq=6)
            await second.submits(1)
            echo(second.now, second.now.submits[0])
            pieces = await collect(await generate)
            assert sum(len(piece.tokens) for piece in pieces) == 2
            assert first.now.over or len(first.conversations) > 1


async def test_a_report_older_than_a_second_grants_nothing(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        router.clock.advance(1.5)
        generate = asyncio.create_task(router.service.generate(request()))
        await until(lambda: router.metric("requests_queued", model="tiny") == 1, "the queue")
        assert worker.now.submits == []
        worker.now.load()
        await collect(await generate)


async def test_credits_bound_what_is_in_flight_beyond_the_acknowledged(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=2)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            tasks = [asyncio.create_task(router.service.generate(request())) for _ in range(5)]
            await worker.submits(2)
            await until(lambda: router.metric("requests_queued", model="tiny") == 3, "the queue")
            worker.now.tokens(worker.now.submits[0].choices[0].handle, [10], acked=2)  # an ack alone is no new credit
            await until(lambda: any(task.done() for task in tasks), "the first token")
            assert len(worker.now.submits) == 2
            worker.now.load(credits=1)
            await worker.submits(3)
            assert len(worker.now.submits) == 3
            for task in tasks:
                task.cancel()


async def test_c14_a_hung_worker_loses_its_requests_and_comes_back_with_a_step(tmp_path):
    async with ScriptedWorker(worker_id="a") as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        generate = asyncio.create_task(router.service.generate(request()))
        await worker.submits(1)
        worker.now.load(has_work=True, last_step_age_ms=6_000, predicted_step_ms=100.0)
        assert isinstance(await failure(generate), Unavailable)
        assert not router.service.ready()
        assert [list(abort.handles) for abort in await worker.aborts()] == [[worker.now.submits[0].choices[0].handle]]
        worker.now.load(has_work=True, last_step_age_ms=10)
        await router.ready()


async def test_a_slow_step_within_its_prediction_is_not_hung(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        worker.now.load(has_work=True, last_step_age_ms=6_000, predicted_step_ms=400.0, running=3)
        await until(lambda: router.service._fleet.links[0].view(router.clock()).running == 3, "the report")
        assert router.service.ready()


async def test_a_draining_worker_gets_nothing_new_and_keeps_its_streams(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        generate = asyncio.create_task(router.service.generate(request(max_tokens=1)))
        await worker.submits(1)
        worker.now.send(pb.Down(draining=pb.Draining(deadline_ms=1_000)))
        await until(lambda: router.metric("workers", state="draining") == 1, "draining")
        assert not router.service.ready()
        assert isinstance(await failure(asyncio.create_task(router.service.generate(request()))), Unavailable)
        handle = worker.now.submits[0].choices[0].handle
        worker.now.tokens(handle, [10])
        worker.now.finish(handle, 1)
        pieces = await collect(await generate)
        assert [token for piece in pieces for token in piece.tokens] == [10]
        assert pieces[-1].ended is not None


async def test_a_stream_that_makes_no_sense_is_cut_and_made_anew(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        worker.now.send(pb.Down(step_batch=pb.StepBatch(handles=[1], counts=[])))
        await until(lambda: len(worker.conversations) == 2, "a new stream")
        await router.ready()


async def test_frames_about_unknown_handles_are_dropped(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        worker.now.tokens(99, [1, 2, 3])
        worker.now.finish(99, 3)
        pieces = await collect(await router.service.generate(request(20, 21)))
        assert sum(len(piece.tokens) for piece in pieces) == 2
        assert len(worker.conversations) == 1


async def test_no_frame_of_a_long_prompt_exceeds_the_limit(tmp_path):
    tokens = [token % 266 for token in range(100_000)]
    async with ScriptedWorker(max_model_len=200_000) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            generate = asyncio.create_task(router.service.generate(request(prompt=TokenPrompt(tokens=tokens))))
            await until(lambda: len(worker.now.of("submit_part")) == 12, "every part")
            got = [t for part in [*worker.now.submits, *worker.now.of("submit_part")] for t in part.prompt_tokens]
            assert got == tokens
            assert max(worker.now.sizes) <= rpc.FRAME_LIMIT
            generate.cancel()


async def test_a_dying_worker_leaves_the_others_streams_untouched(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            tasks = [asyncio.create_task(router.service.generate(request(20 + i, max_tokens=2))) for i in range(2)]
            submits = [(await worker.submits(1))[0] for worker in (one, two)]
            for worker, submit in zip((one, two), submits, strict=True):
                worker.now.tokens(submit.choices[0].handle, [40])
            generations = [await task for task in tasks]
            await one.stop()
            for submit in await two.submits(2):
                two.now.tokens(submit.choices[0].handle, [41])
                two.now.finish(submit.choices[0].handle, 2)
            for pieces in await asyncio.gather(*map(collect, generations)):
                assert [t for piece in pieces for t in piece.tokens] == [40, 41]


async def test_a_worker_that_sends_nothing_but_reports_stays_connected(tmp_path):
    async with (
        ScriptedWorker(script=echo) as worker,
        running_router(worker, tmp_path=tmp_path) as router,
    ):
        await router.ready()
        for step in range(20):
            router.clock.advance(1.0)
            await report(router, worker, step_seq=step + 1)
        assert len(worker.conversations) == 1


async def report(router: Router, worker: ScriptedWorker, **load: Any) -> None:
    """Have `worker` send a Load, and wait until the router has it."""
    worker.now.load(**load)
    link = next(link for link in router.service._fleet.links if link.target == worker.target)
    await until(lambda: link.worker.stream.liveness.load.step_seq == load["step_seq"], "the report")


async def failure(task: "asyncio.Task[object]") -> BaseException | None:
    """What `task` raises."""
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result if isinstance(result, BaseException) else None


def test_settings_of_tests_differ_from_the_defaults_only_in_pace():
    assert (QUICK.suspect_after, QUICK.dead_after, QUICK.credit_ttl) == (2.0, 5.0, 1.0)


async def test_text_comes_back_through_a_real_stream(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        tokens = tiny_tokenizers.byte_level().encode("naïve 😀 ก", add_special_tokens=False).ids
        pieces = await collect(await router.service.generate(request(prompt=TokenPrompt(tokens=tokens), max_tokens=50)))
        assert text_of(pieces) == "naïve 😀 ก"


async def test_a_router_that_closes_in_any_phase_of_a_welcome_does_close(tmp_path):
    """From a worker's side of the handshake on, turn by turn of the loop."""
    async with ScriptedWorker() as worker:
        for turns in range(120):
            async with running_router(worker, tmp_path=tmp_path) as router:
                while len(worker.conversations) <= turns:
                    await asyncio.sleep(0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                async with asyncio.timeout(BOUND):
                    await router.service.aclose()
