"""Where requests go: rejections, losses, full queues, and requests that can never be right."""

import asyncio

import pytest

from router.dispatch.ends import RETRY_AFTER
from router.fleet import link
from router.request import GenerateRequest, TextPrompt, TokenPrompt
from shared import errors
from shared.types import RejectCode, Tenant, TokenLogprobs
from tests.fakes.router import QUICK, Router, collect, request, running_router
from tests.fakes.scripted_worker import Conversation, ScriptedWorker, echo, load_report, until


def rejecting(code: RejectCode, **more: object):
    def script(conversation: Conversation, submit) -> None:
        conversation.reject(submit.seq, code, **more)

    return script


async def failing(router: Router, asked: GenerateRequest) -> errors.OctavoError:
    """The error that `asked` ends in."""
    with pytest.raises(errors.OctavoError) as caught:
        await collect(await router.service.generate(asked))
    return caught.value


# ---- rejections


@pytest.mark.parametrize("code", [RejectCode.QUEUE_FULL, RejectCode.DRAINING])
async def test_a_retryable_rejection_is_tried_elsewhere(tmp_path, code):
    async with ScriptedWorker(script=rejecting(code), worker_id="a") as full:
        async with ScriptedWorker(script=echo, worker_id="b") as free:
            async with running_router(full, free, tmp_path=tmp_path) as router:
                await router.ready(workers=2)
                for number in range(4):
                    assert await collect(await router.service.generate(request(20 + number)))
                assert len(free.now.submits) == 4
                assert len(full.now.submits) > 0
                assert router.metric("resubmits_total", model="tiny", reason=code.value) == len(full.now.submits)


async def test_c19_when_every_worker_is_full_the_answer_is_overloaded_with_their_time(tmp_path):
    script = rejecting(RejectCode.QUEUE_FULL, retry_after_ms=2_500)
    async with ScriptedWorker(script=script, worker_id="a") as one, ScriptedWorker(script=script, worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            error = await failing(router, request())
            assert isinstance(error, errors.Overloaded)
            assert error.retry_after == 2.5
            assert len(one.now.submits) == len(two.now.submits) == 1


async def test_a_request_is_resubmitted_at_most_so_often(tmp_path):
    script = rejecting(RejectCode.QUEUE_FULL)
    workers = [ScriptedWorker(script=script, worker_id=name) for name in "abcd"]
    async with workers[0], workers[1], workers[2], workers[3]:
        async with running_router(*workers, tmp_path=tmp_path, max_resubmits=2) as router:
            await router.ready(workers=4)
            assert isinstance(await failing(router, request()), errors.Overloaded)
            assert sum(len(worker.now.submits) for worker in workers) == 3


@pytest.mark.parametrize(
    ("code", "param", "error", "named"),
    [
        (RejectCode.INVALID, "stop_token_ids", errors.InvalidRequest, "stop_token_ids"),
        (RejectCode.INVALID, "prompt_tokens", errors.InvalidRequest, "messages"),
        (RejectCode.TOO_LONG, "", errors.ContextLengthExceeded, "messages"),
    ],
)
async def test_a_final_rejection_names_the_parameter_and_is_not_tried_again(tmp_path, code, param, error, named):
    async with ScriptedWorker(script=rejecting(code, param=param), worker_id="a") as one:
        async with ScriptedWorker(script=rejecting(code, param=param), worker_id="b") as two:
            async with running_router(one, two, tmp_path=tmp_path) as router:
                await router.ready(workers=2)
                caught = await failing(router, request(prompt_param="messages"))
                assert type(caught) is error
                assert caught.param == named
                assert len(one.now.submits) + len(two.now.submits) == 1


async def test_a_request_bounced_after_its_acknowledgement_goes_elsewhere_unseen(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            task = asyncio.create_task(router.service.generate(request(20, 21)))
            await until(lambda: one.now.submits or two.now.submits, "the submit")
            first, second = (one, two) if one.now.submits else (two, one)
            second.script = echo
            first.now.load()
            generation = await task
            first.now.reject(first.now.submits[0].seq, RejectCode.QUEUE_FULL)
            pieces = await collect(generation)
            assert [token for piece in pieces for token in piece.tokens] == [20, 21]


# ---- losses


async def test_a_worker_lost_before_any_token_is_replaced_unseen(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            task = asyncio.create_task(router.service.generate(request(20, 21, n=2)))
            await until(lambda: one.now.submits or two.now.submits, "the submit")
            first, second = (one, two) if one.now.submits else (two, one)
            second.script = echo
            first.now.drop()
            pieces = await collect(await task)
            assert len(pieces) == 6
            assert router.metric("resubmits_total", model="tiny", reason="lost") == 1


async def test_router_case_27_a_retry_never_lands_on_the_worker_that_failed(tmp_path):
    async with ScriptedWorker(worker_id="a") as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request()))
        await worker.submits()
        worker.now.drop()
        with pytest.raises(errors.Unavailable):
            await task
        await until(lambda: len(worker.conversations) == 2, "the next stream")
        await router.ready()
        assert worker.now.submits == []


async def test_a_worker_lost_after_a_token_ends_the_request_with_one_error_where_there_is_no_other(tmp_path):
    async with ScriptedWorker(worker_id="a") as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=2)))
        submit = (await worker.submits())[0]
        worker.now.tokens(submit.choices[1].handle, [20])
        generation = await task
        worker.now.drop()
        with pytest.raises(errors.Unavailable):
            await collect(generation)
        assert router.service._dispatcher.flights == 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("drop", link.ENDED),
        ("crash", link.CUT),
        ("silent", link.SILENT),
        ("hang", link.HUNG),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_lost_worker_is_told_in_our_words_and_may_be_tried_again(tmp_path, how, words, begun):
    async with ScriptedWorker(worker_id="a") as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request()))
        submit = (await worker.submits())[0]
        if begun:
            worker.now.tokens(submit.choices[0].handle, [20])
            await task
        await lose(worker, router, how)
        with pytest.raises(errors.Unavailable) as lost:
            await collect(await task)
        assert (lost.value.message, lost.value.retry_after) == (words, RETRY_AFTER)


async def lose(worker, router, how):
    """In one of the ways in which workers get lost."""
    match how:
        case "drop":
            worker.now.drop()
        case "crash":
            await worker.stop()
        case "silent":  # again and again: a frame that comes just now is a sign of life
            await until(lambda: router.clock.advance(QUICK.dead_after) or len(worker.conversations) > 1, "a new stream")
        case "hang":
            worker.now.load(has_work=True, last_step_age_ms=60_000)


async def test_no_live_worker_is_unavailable_and_ends_what_waits(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            task = asyncio.create_task(router.service.generate(request()))
            await until(lambda: router.metric("requests_queued", model="tiny") == 1, "the queue")
            await worker.stop()
            with pytest.raises(errors.Unavailable):
                await task
            assert isinstance(await failing(router, request()), errors.Unavailable)
            assert isinstance(await failing(router, request(model="other")), errors.ModelNotFound)


async def test_a_router_that_never_saw_a_worker_is_unavailable(tmp_path):
    async with running_router("127.0.0.1:1", tmp_path=tmp_path) as router:
        assert isinstance(await failing(router, request()), errors.Unavailable)


# ---- queues


async def test_c19_a_full_queue_answers_overloaded_before_any_work(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path, max_queued=3, max_queued_per_tenant=2) as router:
            await router.ready()
            tenants = [Tenant(id="a"), Tenant(id="a"), Tenant(id="b")]
            tasks = [asyncio.create_task(router.service.generate(request(tenant=tenant))) for tenant in tenants]
            await until(lambda: router.metric("requests_queued", model="tiny") == 3, "the queue")
            error = await failing(router, request(tenant=Tenant(id="a")))
            assert isinstance(error, errors.Overloaded)
            assert error.retry_after is not None
            tasks.append(asyncio.create_task(router.service.generate(request(tenant=Tenant(id="c")))))
            with pytest.raises(errors.Overloaded):  # the newest of who has most makes room for who has less
                await tasks[1]
            assert router.metric("requests_queued", model="tiny") == 3
            for task in tasks:
                task.cancel()


async def test_tenants_take_turns_when_credit_is_scarce(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            greedy, modest = Tenant(id="greedy"), Tenant(id="modest")
            asked = [request(20, tenant=greedy)] * 6 + [request(30, tenant=modest)] * 2
            tasks = [asyncio.create_task(router.service.generate(one)) for one in asked]
            await until(lambda: router.metric("requests_queued", model="tiny") == 8, "the queue")
            for count in range(1, 5):
                worker.now.load(credits=1)
                await worker.submits(count)
            assert sorted(submit.tenant.id for submit in worker.now.submits) == ["greedy"] * 2 + ["modest"] * 2
            for task in tasks:
                task.cancel()


async def test_router_cases_1_and_2_idle_workers_take_turns_and_counts_are_true(tmp_path):
    workers = [ScriptedWorker(script=echo, worker_id=name) for name in "abcd"]
    async with workers[0], workers[1], workers[2], workers[3]:
        async with running_router(*workers, tmp_path=tmp_path) as router:
            await router.ready(workers=4)
            for number in range(22):
                await collect(await router.service.generate(request(20 + number)))
            counts = [len(worker.now.submits) for worker in workers]
            assert max(counts) - min(counts) <= 1
            streams = [link.worker.stream for link in router.service._fleet.links]
            await until(lambda: sum(stream.pending.choices for stream in streams) == 0, "every report")
            assert [stream.open_requests for stream in streams] == [0, 0, 0, 0]


# ---- what can never be right


@pytest.mark.parametrize(
    ("asked", "error", "param"),
    [
        (request(model="other"), errors.ModelNotFound, "model"),
        (request(model="x" * 100_000), errors.ModelNotFound, "model"),
        (request(prompt=TokenPrompt(tokens=())), errors.InvalidRequest, "prompt"),
        (request(prompt=TextPrompt(text=""), prompt_param="prompt"), errors.InvalidRequest, "prompt"),
        (request(10, 266), errors.InvalidRequest, "prompt"),
        (request(10, -1), errors.InvalidRequest, "prompt"),
        (request(stop_token_ids=(266,)), errors.InvalidRequest, "stop_token_ids"),
        (request(*range(200), *range(56)), errors.ContextLengthExceeded, "prompt"),
        (request(*range(200), max_tokens=57), errors.ContextLengthExceeded, "max_tokens"),
        (request(min_tokens=17), errors.InvalidRequest, "min_tokens"),
        (request(prompt=TextPrompt(text="x" * (1 << 21))), errors.RequestTooLarge, "prompt"),
    ],
)
async def test_a_request_that_can_never_be_right_names_its_parameter_and_reaches_no_worker(
    tmp_path, asked, error, param
):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        caught = await failing(router, asked)
        assert type(caught) is error
        assert len(caught.message) < 1_000  # it travels in headers
        assert caught.param == param
        assert worker.now.submits == []


async def test_a_context_error_names_both_numbers_and_an_unsaid_limit_is_what_is_left(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        error = await failing(router, request(*range(200), *range(60)))
        assert "260" in error.message
        assert "256" in error.message
        await router.service.generate(request(*range(200), *range(50)))
        assert worker.now.submits[0].sampling.max_tokens == 6
        await router.service.generate(request(10))
        assert worker.now.submits[1].sampling.max_tokens == 16


async def test_tokenize_and_detokenize_are_each_others_inverse(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        tokens = await router.service.tokenize("tiny", TextPrompt(text="naïve 😀"))
        assert await router.service.detokenize("tiny", tokens) == "naïve 😀"
        with pytest.raises(errors.InvalidRequest):
            await router.service.detokenize("tiny", [10**9])


# ---- faults of one request


@pytest.mark.parametrize("rows", [1, 3])
async def test_a_request_that_cannot_be_told_ends_alone(tmp_path, caplog, rows):
    """Its worker sends other log-probabilities than two for two tokens; the other request of the same stream does not notice."""
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        bad = asyncio.create_task(router.service.generate(request(logprobs=0)))
        good = asyncio.create_task(router.service.generate(request(20, 21, max_tokens=3)))
        (first, second) = await worker.submits(2)
        broken, fine = (first, second) if first.sampling.HasField("logprobs") else (second, first)
        worker.now.load()
        generation = await bad
        worker.now.tokens(fine.choices[0].handle, [20])
        worker.now.tokens(broken.choices[0].handle, [20, 21], logprobs=[TokenLogprobs(sampled=-1.0)] * rows)
        with pytest.raises(errors.Internal, match="the router failed on this request"):
            await collect(generation)
        worker.now.tokens(fine.choices[0].handle, [21, 22])
        worker.now.finish(fine.choices[0].handle, 3)
        pieces = await collect(await good)
        assert [token for piece in pieces for token in piece.tokens] == [20, 21, 22]
        assert [list(abort.handles) for abort in await worker.aborts()] == [[broken.choices[0].handle]]
        assert "cannot be told" in caplog.text
        assert len(worker.conversations) == 1


@pytest.mark.parametrize("timeout", [5e6, 1e9, 99_999_999 * 3600.0])
async def test_a_deadline_beyond_what_the_wire_tells_is_none(tmp_path, timeout):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        assert await collect(await router.service.generate(request(timeout=timeout)))
        assert not worker.now.submits[0].HasField("remaining_ms")
        assert await collect(await router.service.generate(request(timeout=4e6)))
        assert 0 < worker.now.submits[1].remaining_ms <= 4e9


async def test_a_request_that_cannot_be_sent_ends_alone(tmp_path, caplog):
    """Half a surrogate pair is no text for protobuf. The request that runs on the same stream, and the next one, do not notice."""
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        running = asyncio.create_task(router.service.generate(request(20, max_tokens=1)))
        (fine,) = await worker.submits(1)
        with pytest.raises(errors.Internal, match="the router failed on this request"):
            await collect(await router.service.generate(request(traceparent="\ud800")))
        worker.now.tokens(fine.choices[0].handle, [20])
        worker.now.finish(fine.choices[0].handle, 1)
        assert [token for piece in await collect(await running) for token in piece.tokens] == [20]
        again = asyncio.create_task(router.service.generate(request(21, max_tokens=1)))
        *_, second = await worker.submits(2)
        worker.now.tokens(second.choices[0].handle, [21])
        worker.now.finish(second.choices[0].handle, 1)
        assert await collect(await again)
        assert "cannot be sent" in caplog.text
        assert len(worker.conversations) == 1


async def test_a_request_refused_after_it_was_tokenized_leaves_no_timer_behind(tmp_path):
    """Both pass the first look at the queue, which has room for one; the refused one's time must not end it a second time."""
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path, max_queued=1) as router:
            await router.ready()
            asked = request(prompt=TextPrompt(text="hello"), timeout=0.3)
            results = await asyncio.gather(*(router.service.generate(asked) for _ in range(2)), return_exceptions=True)
            assert {type(result) for result in results} == {errors.Overloaded, errors.DeadlineExceeded}
            await until(lambda: router.service._dispatcher.flights == 0, "the end of both")
            deadline = asyncio.get_running_loop().time() + 0.1  # a timer left behind would be due before
            await until(lambda: asyncio.get_running_loop().time() > deadline, "the other timer")
            assert router.metric("requests_in_flight", model="tiny") == 0
            assert router.metric("requests_total", model="tiny", outcome="deadline_exceeded") == 1
