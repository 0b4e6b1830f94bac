"""Sampling options and prompt log-probabilities through a router's inside, over real streams."""

import asyncio

import pytest

from router.request import TextPrompt
from shared.errors import InvalidRequest
from shared.types import FinishReason, PromptLogprobs, RejectCode, StepDeltas, TokenDelta, TokenLogprobs
from shared.wire import worker as wire
from shared.wire.sampling import sampling_from_pb
from tests.fakes import tiny_tokenizers
from tests.fakes.router import collect, request, running_router
from tests.fakes.scripted_worker import Conversation, ScriptedWorker, echo, until

TOKENIZER = tiny_tokenizers.byte_level()
END = TOKENIZER.token_to_id("END")


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def rows(first: int, count: int) -> PromptLogprobs:
    made = (TokenLogprobs(sampled=-float(first + i), top=((40 + first + i, -0.5),)) for i in range(count))
    return PromptLogprobs(first=first, rows=tuple(made))


def tell(worker: Conversation, *deltas: TokenDelta, acked: int) -> None:
    for frame in wire.step_to_pb(StepDeltas(step_seq=1, acked_seq=acked, deltas=deltas)):
        worker.send(frame)


async def test_options_arrive_at_the_worker(tmp_path) -> None:
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        asked = request(
            presence_penalty=0.5,
            frequency_penalty=-1.5,
            repetition_penalty=1.25,
            logit_bias=((7, -100.0),),
            allowed_token_ids=(7, 8),
            bad_words=((9, 10),),
            bad_word_strings=("END",),
            max_tokens=2,
        )
        await collect(await router.service.generate(asked))
        got = sampling_from_pb(worker.now.submits[0].sampling)
        assert (got.presence_penalty, got.frequency_penalty, got.repetition_penalty) == (0.5, -1.5, 1.25)
        assert (got.logit_bias, got.allowed_token_ids) == (((7, -100.0),), (7, 8))
        assert got.bad_words[0] == (9, 10)
        assert sorted(map(tuple, got.bad_words[1:])) == sorted(map(tuple, (encode("END"), encode(" END"))))
        assert got.prompt_logprobs is None


async def test_options_that_are_not_said_stay_off_the_wire(tmp_path) -> None:
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        await collect(await router.service.generate(request(max_tokens=2)))
        spec = worker.now.submits[0].sampling
        told = {field.name for field, _ in spec.ListFields()}
        assert told <= {"temperature", "top_p", "seed", "max_tokens", "repetition_penalty"}


async def test_rows_of_a_prompt_are_whole_when_the_first_token_is_there(tmp_path) -> None:
    """In several frames, and told by two choices: the first one left in the middle."""
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request(10, 11, 12, 13, 14, n=2, prompt_logprobs=1)))
        submit = (await worker.submits())[0]
        first, second = (choice.handle for choice in submit.choices)
        tell(worker.now, TokenDelta(handle=first, tokens=(), prompt=rows(1, 2)), acked=1)
        generation = await task
        tell(worker.now, TokenDelta(handle=second, tokens=(20,), prompt=rows(3, 2)), acked=1)
        tell(worker.now, TokenDelta(handle=first, tokens=(21,)), acked=1)
        for handle in (first, second):
            worker.now.finish(handle, 1)
        seen = []
        async for pieces in generation:
            seen.append(generation.prompt_logprobs)
            assert pieces
        assert all(len(told) == 5 for told in seen)
        told = generation.prompt_logprobs
        assert told[0] is None
        assert [(row.sampled.token, row.sampled.logprob) for row in told[1:] if row] == [
            (11, -1.0),
            (12, -2.0),
            (13, -3.0),
            (14, -4.0),
        ]
        assert [row.top[0].token for row in told[1:] if row] == [41, 42, 43, 44]
        assert told[1] is not None
        assert told[1].sampled.text == TOKENIZER.id_to_token(11).encode()


async def test_rows_begin_anew_on_another_worker(tmp_path) -> None:
    """Rows alone do not bind a request to its worker: none of them has been shown."""
    async with (
        ScriptedWorker(worker_id="a") as one,
        ScriptedWorker(worker_id="b") as two,
        running_router(one, two, tmp_path=tmp_path) as router,
    ):
        await router.ready(2)
        task = asyncio.create_task(router.service.generate(request(10, 11, 12, prompt_logprobs=0)))
        await until(lambda: one.now.submits or two.now.submits, "a submit")
        here, there = (one, two) if one.now.submits else (two, one)
        handle = here.now.submits[0].choices[0].handle
        tell(here.now, TokenDelta(handle=handle, tokens=(), prompt=rows(1, 1)), acked=0)
        here.now.reject(here.now.submits[0].seq, RejectCode.QUEUE_FULL)
        submit = (await there.submits())[0]
        tell(there.now, TokenDelta(handle=submit.choices[0].handle, tokens=(5,), prompt=rows(1, 2)), acked=1)
        there.now.finish(submit.choices[0].handle, 1)
        generation = await task
        await collect(generation)
        assert [row.sampled.logprob for row in generation.prompt_logprobs if row] == [-1.0, -2.0]


async def test_no_rows_are_given_where_none_were_asked(tmp_path) -> None:
    async with ScriptedWorker(script=echo) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        generation = await router.service.generate(request(max_tokens=2))
        await collect(generation)
        assert generation.prompt_logprobs == ()


async def test_only_the_last_tokens_of_a_truncated_prompt_are_kept(tmp_path) -> None:
    async with (
        ScriptedWorker(script=echo, max_model_len=20) as worker,
        running_router(worker, tmp_path=tmp_path) as router,
    ):
        await router.ready()
        text = "Hello the world and the world"
        asked = request(prompt=TextPrompt(text=text), truncate_prompt_tokens=7, max_tokens=2)
        generation = await router.service.generate(asked)
        await collect(generation)
        assert list(worker.now.submits[0].prompt_tokens) == encode(text)[-7:] == list(generation.prompt_tokens)
        assert generation.usage.prompt_tokens == 7
        await collect(await router.service.generate(request(1, 2, 3, truncate_prompt_tokens=9, max_tokens=2)))
        assert list(worker.now.submits[1].prompt_tokens) == [1, 2, 3]


async def test_a_choice_that_a_worker_ends_for_its_options_is_the_callers_fault(tmp_path) -> None:
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        task = asyncio.create_task(router.service.generate(request()))
        handle = (await worker.submits())[0].choices[0].handle
        worker.now.tokens(handle, [5], acked=1)
        worker.now.finish(handle, 1, FinishReason.ERROR, message="no token is left", param="allowed_token_ids")
        with pytest.raises(InvalidRequest) as failed:
            await collect(await task)
        assert (failed.value.param, failed.value.message) == ("allowed_token_ids", "no token is left")


@pytest.mark.parametrize(
    ("param", "options"),
    [("bad_word_strings", {"bad_word_strings": ("é" * 40,)}), ("logit_bias", {"logit_bias": ((266, 1.0),)})],
)
async def test_case_c26_what_the_model_does_not_have_never_leaves_the_router(tmp_path, param, options) -> None:
    async with ScriptedWorker() as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        with pytest.raises(InvalidRequest) as refused:
            await router.service.generate(request(**options))
        assert refused.value.param == param
        assert not worker.now.submits
