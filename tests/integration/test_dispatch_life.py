"""A request's life over real streams: answers, counts, ends, and what happens when it is cut short."""

import asyncio

import pytest

from router.request import ChatPrompt, Message, Piece, TextPrompt
from shared.errors import Cancelled, DeadlineExceeded, Internal, Overloaded, Unavailable
from shared.types import FinishReason, TokenLogprobs
from tests.fakes import tiny_tokenizers
from tests.fakes.router import collect, request, running_router, text_of
from tests.fakes.scripted_worker import ScriptedWorker, echo, load_report, until

TOKENIZER = tiny_tokenizers.byte_level()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def check_ends_once(pieces: list[Piece], choices: int = 1) -> None:
    for index in range(choices):
        ends = [piece.ended is not None for piece in pieces if piece.index == index]
        assert ends == [False] * (len(ends) - 1) + [True]


async def test_a_text_prompt_is_answered_in_text(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        generation = await router.service.generate(request(prompt=TextPrompt(text="Hello wörld"), max_tokens=50))
        pieces = await collect(generation)
        assert text_of(pieces) == "Hello wörld"
        check_ends_once(pieces)
        count = len(encode("Hello wörld"))
        usage = generation.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (count, count, min(count, 16))
        assert router.metric("requests_total", model="tiny", outcome="ok") == 1
        assert router.metric("requests_in_flight", model="tiny") == 0
        assert router.metric("output_tokens_total", model="tiny") == count


async def test_a_chat_is_rendered_and_gets_what_the_context_leaves(tmp_path):
    async with ScriptedWorker(max_model_len=100) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        chat = ChatPrompt(messages=(Message(role="user", content="hi"),))
        task = asyncio.create_task(router.service.generate(request(model="", prompt=chat)))
        submit = (await worker.submits())[0]
        assert TOKENIZER.decode(list(submit.prompt_tokens), skip_special_tokens=False).startswith("<|im_start|>user")
        assert submit.sampling.max_tokens == 100 - len(submit.prompt_tokens)
        task.cancel()


async def test_every_choice_has_its_own_text_and_end(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=3, max_tokens=2)))
        submit = (await worker.submits())[0]
        assert [choice.index for choice in submit.choices] == [0, 1, 2]
        for choice, text in zip(submit.choices, ("ab", "cd", "ef"), strict=True):
            worker.now.tokens(choice.handle, encode(text), acked=1)
        for choice in reversed(submit.choices):
            worker.now.finish(choice.handle, 2)
        generation = await task
        pieces = await collect(generation)
        assert [text_of(pieces, index) for index in range(3)] == ["ab", "cd", "ef"]
        check_ends_once(pieces, 3)
        assert generation.usage.completion_tokens == 6


async def test_a_seed_is_drawn_and_reported_where_none_is_given(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        drawn = [await router.service.generate(request()) for _ in range(2)]
        assert [generation.seed for generation in drawn] == [s.sampling.seed for s in worker.now.submits]
        assert drawn[0].seed != drawn[1].seed
        assert (await router.service.generate(request(seed=7))).seed == 7


async def test_c27_ids_are_unique_whatever_the_caller_chose(tmp_path):
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        ids = [(await router.service.generate(request(request_id="same"))).id for _ in range(3)]
        assert len(set(ids)) == 3
        assert [submit.request_id for submit in worker.now.submits] == ids


async def test_pieces_that_wait_go_out_in_one_flush_and_the_first_goes_alone(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=2, max_tokens=9)))
        handles = [choice.handle for choice in (await worker.submits())[0].choices]
        worker.now.tokens(handles[0], encode("a"))
        flushes = aiter(await task)
        assert [piece.text for piece in await anext(flushes)] == ["a"]
        for handle in handles:
            worker.now.tokens(handle, encode("b"))
        worker.now.load(step_seq=5)
        link = router.service._fleet.links[0]
        await until(lambda: link.worker.stream.liveness.load.step_seq == 5, "the step")
        assert [(piece.index, piece.text) for piece in await anext(flushes)] == [(0, "b"), (1, "b")]


async def test_logprobs_come_with_each_token(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(logprobs=1, max_tokens=1)))
        submit = (await worker.submits())[0]
        assert submit.sampling.logprobs == 1
        (token,) = encode("é")[:1]
        row = TokenLogprobs(sampled=-0.5, top=((token, -0.5),))
        worker.now.tokens(submit.choices[0].handle, [token], logprobs=[row])
        worker.now.finish(submit.choices[0].handle, 1)
        first = (await collect(await task))[0]
        assert first.logprobs[0].sampled.text == "é".encode()[:1]
        assert first.logprobs[0].top[0].logprob == -0.5


# ---- stop strings


async def test_c33_c39_a_stop_string_ends_the_text_aborts_the_choice_and_bills_no_overshoot(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(stop=("END",), max_tokens=50)))
        handle = (await worker.submits())[0].choices[0].handle
        for token in encode("abE"):
            worker.now.tokens(handle, [token])
        worker.now.tokens(handle, encode("N") + encode("D") + encode("x"))
        abort = (await worker.aborts())[0]
        assert (list(abort.handles), abort.reason) == ([handle], 2)
        worker.now.tokens(handle, encode("y"))
        worker.now.finish(handle, 7, FinishReason.STOP, cached_tokens=3)
        generation = await task
        pieces = await collect(generation)
        assert text_of(pieces) == "ab"
        check_ends_once(pieces)
        assert pieces[-1].ended is not None
        assert pieces[-1].ended.stop_string == "END"
        assert [token for piece in pieces for token in piece.tokens] == encode("abE") + encode("N") + encode("D")
        assert (generation.usage.completion_tokens, generation.usage.cached_tokens) == (5, 3)
        assert router.metric("overshoot_tokens_total", model="tiny") == 2
        assert router.metric("aborts_total", reason="stopped") == 1


async def test_a_worker_that_dies_after_the_stop_string_spoils_nothing(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(stop=("b",), max_tokens=50)))
        handle = (await worker.submits())[0].choices[0].handle
        worker.now.tokens(handle, encode("ab"))
        await worker.aborts()
        await worker.stop()
        assert text_of(await collect(await task)) == "a"


# ---- C16, C17: the caller leaves, at any phase


async def test_c16_a_request_that_waits_in_the_router_is_never_sent(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            task = asyncio.create_task(router.service.generate(request()))
            await until(lambda: router.metric("requests_queued", model="tiny") == 1, "the queue")
            task.cancel()
            await asyncio.wait([task])
            assert router.service._dispatcher.flights == 0
            worker.now.load(step_seq=1)
            task = asyncio.create_task(router.service.generate(request(40)))
            assert list((await worker.submits())[0].prompt_tokens) == [40]
            assert worker.now.aborts == []
            task.cancel()


@pytest.mark.parametrize("phase", ["sent", "accepted", "decoding"])
async def test_c16_c17_leaving_aborts_every_choice_once(tmp_path, phase):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=3)))
        submit = (await worker.submits())[0]
        handles = [choice.handle for choice in submit.choices]
        if phase == "sent":
            task.cancel()
            await asyncio.wait([task])
        else:
            if phase == "accepted":
                worker.now.load()
            else:
                worker.now.tokens(handles[0], encode("a"))
            generation = await task
            await generation.aclose()
            await generation.aclose()
        (abort,) = await worker.aborts()
        assert (list(abort.handles), abort.reason) == (handles, 1)
        assert router.service._dispatcher.flights == 0
        assert router.metric("aborts_total", reason="client") == 3
        worker.now.finish(handles[0], 1, FinishReason.ABORTED)
        await until(lambda: len(worker.now.of("ping")) > 0, "the stream's life")
        assert len(worker.now.aborts) == 1


async def test_c16_finished_choices_are_not_aborted(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=2)))
        handles = [choice.handle for choice in (await worker.submits())[0].choices]
        worker.now.tokens(handles[0], encode("a"))
        worker.now.finish(handles[0], 1)
        generation = await task
        flushes = aiter(generation)
        pieces: list[Piece] = []
        while not any(piece.ended for piece in pieces):
            pieces += await anext(flushes)
        await generation.aclose()
        assert list((await worker.aborts())[0].handles) == [handles[1]]


async def test_a_reader_of_a_closed_generation_is_told(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request()))
        await worker.submits()
        worker.now.load()
        generation = await task
        await generation.aclose()
        with pytest.raises(Cancelled):
            await collect(generation)


async def test_a_slow_reader_is_cut_off_alone(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path, max_unread=10) as router:
        await router.ready()
        tasks = [asyncio.create_task(router.service.generate(request(20 + i, max_tokens=99))) for i in range(2)]
        slow, quick = (submit.choices[0].handle for submit in await worker.submits(2))
        for _ in range(11):
            worker.now.tokens(slow, encode("a"))
        assert list((await worker.aborts())[0].handles) == [slow]
        worker.now.tokens(quick, encode("b"))
        worker.now.finish(quick, 1)
        generations = [await task for task in tasks]
        with pytest.raises(Overloaded, match="too slow"):
            await collect(generations[0])
        assert text_of(await collect(generations[1])) == "b"


# ---- deadlines and errors


async def test_a_deadline_passes_in_the_queue(tmp_path):
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            with pytest.raises(DeadlineExceeded):
                await router.service.generate(request(timeout=0.05))
            assert router.service._dispatcher.flights == 0
            assert worker.now.submits == []


async def test_a_deadline_travels_and_ends_the_request_with_an_abort(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(timeout=0.2)))
        submit = (await worker.submits())[0]
        assert 0 < submit.remaining_ms <= 200
        worker.now.tokens(submit.choices[0].handle, encode("a"))
        generation = await task
        with pytest.raises(DeadlineExceeded):
            await collect(generation)
        abort = (await worker.aborts())[0]
        assert (list(abort.handles), abort.reason) == ([submit.choices[0].handle], 3)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (FinishReason.ERROR, Internal),
        (FinishReason.DEADLINE, DeadlineExceeded),
        (FinishReason.ABORTED, Unavailable),
    ],
)
async def test_a_workers_bad_end_of_one_choice_ends_the_request_and_aborts_the_rest(tmp_path, reason, error):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(n=2)))
        first, second = (choice.handle for choice in (await worker.submits())[0].choices)
        worker.now.tokens(second, encode("a"))
        worker.now.finish(first, 0, reason, message="logits are not finite")
        with pytest.raises(error):
            await collect(await task)
        assert list((await worker.aborts())[0].handles) == [second]


async def test_closing_the_service_ends_every_request(tmp_path):
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request()))
        await worker.submits()
        await router.service.aclose()
        with pytest.raises(Unavailable):
            await task


async def test_when_half_of_many_callers_leave_nothing_is_left_behind_and_the_rest_end_once(tmp_path):
    """Each choice runs until the test says so; every second caller leaves, at a phase that its number chooses."""
    async with ScriptedWorker(first_load=load_report(credits=12)) as worker:
        async with running_router(worker, tmp_path=tmp_path) as router:
            await router.ready()
            asked = [request(20 + number, n=1 + number % 3, max_tokens=9) for number in range(32)]
            tasks = [asyncio.create_task(router.service.generate(one)) for one in asked]
            await worker.submits(12)
            for task in tasks[1::4]:
                task.cancel()
            await asyncio.wait(tasks[1::4])
            while router.metric("requests_queued", model="tiny"):
                sent = len(worker.now.submits)
                worker.now.load(credits=4)
                await worker.submits(sent + 1)

            def settled() -> bool:
                """Again and again: a Load acknowledges what has come, and the last Submits may still be on their way."""
                worker.now.load()
                return all(task.done() for task in tasks)

            await until(settled, "every Submit's acknowledgement")
            generations = await asyncio.gather(*tasks, return_exceptions=True)
            for generation in generations[3::4]:
                await generation.aclose()
            for submit in worker.now.submits:
                for choice in submit.choices:
                    worker.now.tokens(choice.handle, encode("a"))
                    worker.now.finish(choice.handle, 1)
            for generation, one in list(zip(generations, asked, strict=True))[::2]:
                pieces = await collect(generation)
                check_ends_once(pieces, one.n)
            stream = router.service._fleet.links[0].worker.stream
            assert (stream.open_requests, router.service._dispatcher.flights) == (0, 0)
            assert router.metric("requests_in_flight", model="tiny") == 0
            assert router.metric("requests_total", model="tiny", outcome="ok") == 16
            assert router.metric("requests_total", model="tiny", outcome="cancelled") == 16
