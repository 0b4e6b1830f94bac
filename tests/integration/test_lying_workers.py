"""Workers whose frames make no sense: that costs the worker its stream, and neither its neighbours nor any caller anything."""

import asyncio
import logging
import math
from typing import Any

import pytest

from protos import worker_pb2 as pb
from shared.errors import Internal
from shared.types import TokenLogprobs
from tests.fakes.router import collect, request, running_router
from tests.fakes.scripted_worker import ScriptedWorker, echo, load_report, until

MEASURES = ("prefill_tokens_per_s", "step_us_per_pair", "step_us_per_sequence", "step_us_per_context_token")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e30])
@pytest.mark.parametrize("names", [MEASURES, *((name,) for name in MEASURES)])
async def test_measures_that_are_no_numbers_stop_nobody(tmp_path, names, value):
    lie = load_report(predicted_step_ms=value, **dict.fromkeys(names, value))
    async with ScriptedWorker(script=echo, worker_id="a") as honest:
        async with ScriptedWorker(script=echo, worker_id="b", first_load=lie) as liar:
            async with running_router(honest, liar, tmp_path=tmp_path, policy="cost") as router:
                await router.ready(workers=2)
                for number in range(6):
                    assert await collect(await router.service.generate(request(20 + number, 21)))
                    liar.now.load(predicted_step_ms=value, **dict.fromkeys(names, value))
                assert (len(honest.conversations), len(liar.conversations)) == (1, 1)


UNFIT: list[dict[str, Any]] = [
    {"max_model_len": 0},
    {"max_model_len": 1},
    {"vocab_size": 0},
    {"total_blocks": 0},
    {"max_running": 0},
    {"worker_id": ""},
    {"worker_id": "b\r\nERROR of somebody else"},
    {"worker_id": "b" * 1_025},
    {"model": ""},
    {"model": "tiny\x1b[2J"},
    {"model": "m" * 1_000_000},
    {"version": "\x00"},
]


@pytest.mark.parametrize("lie", UNFIT, ids=lambda lie: f"{next(iter(lie))}-{len(str(lie))}")
async def test_a_worker_with_which_its_pool_would_serve_nothing_is_not_taken_and_told_of_once(tmp_path, lie, caplog):
    async with ScriptedWorker(script=echo, worker_id="a") as honest:
        async with ScriptedWorker(script=echo, **({"worker_id": "b"} | lie)) as liar:
            with caplog.at_level(logging.WARNING):
                async with running_router(honest, liar, tmp_path=tmp_path) as router:
                    await router.ready()
                    await until(lambda: len(liar.conversations) > 3, "more tries")
                    assert [(card.id, card.workers) for card in router.service.models()] == [("tiny", 1)]
                    assert await collect(await router.service.generate(request(20, 21)))
    (told,) = [record for record in caplog.records if liar.target in record.getMessage()]
    assert next(iter(lie)) in told.getMessage()
    assert len(told.getMessage()) < 500


def _step(**fields: Any) -> pb.Down:
    return pb.Down(step_batch=pb.StepBatch(**fields))


def _logprobs(**fields: Any) -> pb.Down:
    return _step(handles=[1], counts=[1], tokens=[5], logprobs=[pb.StepLogprobs(handle=1, **fields)])


NONSENSE = {
    "an end without a reason": pb.Down(finish=pb.Finish(handle=1)),
    "an end of an unknown reason": pb.Down(finish=pb.Finish(handle=1, reason=99)),  # type: ignore[arg-type]
    "a Reject without a code": pb.Down(reject=pb.Reject(seq=1)),
    "a Reject of an unknown code": pb.Down(reject=pb.Reject(seq=1, code=99)),  # type: ignore[arg-type]
    "fewer tokens than counted": _step(handles=[1], counts=[4_000_000_000], tokens=[5]),
    "more tokens than counted": _step(handles=[1], counts=[1], tokens=[5, 6]),
    "a token of no model": _step(handles=[1], counts=[1], tokens=[4_000_000_000]),
    "a token just beyond the vocabulary": _step(handles=[1], counts=[1], tokens=[266]),
    "a log-probability that is no number": _logprobs(sampled=[math.nan]),
    "an endless one": _logprobs(sampled=[-1.0], width=1, top_tokens=[3], top_logprobs=[math.inf]),
    "too few alternatives": _logprobs(sampled=[-1.0], width=4_000_000_000),
    "the prompt's first token's": _step(prompt_logprobs=[pb.PromptLogprobs(handle=1, first=0, given=[-1.0])]),
    "half a hash": pb.Down(kv_delta=pb.KvDelta(epoch=1, sequence=1, added=b"abc")),
    "half a hash that goes": pb.Down(kv_delta=pb.KvDelta(epoch=1, sequence=1, removed=bytes(17))),
    "half a hash of a view": pb.Down(kv_snapshot=pb.KvSnapshot(epoch=1, hashes=bytes(20), last=True)),
}


@pytest.mark.parametrize("what", NONSENSE)
async def test_what_makes_no_sense_costs_its_worker_the_stream_and_the_request_goes_on(tmp_path, what, caplog):
    async with ScriptedWorker(script=echo, worker_id="a") as honest, ScriptedWorker(worker_id="b") as liar:
        honest.first_load = load_report(waiting_uncached_tokens=1_000_000)
        async with running_router(honest, liar, tmp_path=tmp_path, policy="cost") as router:
            await router.ready(workers=2)
            task = asyncio.create_task(router.service.generate(request(20, 21, 22, max_tokens=3)))
            await liar.submits()
            liar.now.tokens(1, [20])
            generation = await task
            liar.now.send(NONSENSE[what])
            (resumed,) = await honest.submits()
            assert list(resumed.choices[0].output_tokens) == [20]
            await until(lambda: len(liar.conversations) == 2, "a new stream")
            assert await collect(generation)
            assert len(honest.conversations) == 1
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_caller_gets_and_pays_for_no_more_than_was_asked(tmp_path):
    def too_much(conversation, submit) -> None:
        conversation.load()
        for handle in (choice.handle for choice in submit.choices):
            for count in (3, 50, 500):
                rows = [TokenLogprobs(sampled=-1.0)] * count
                conversation.tokens(handle, [20] * count, acked=submit.seq, logprobs=rows)
            conversation.finish(handle, 2**32 - 1, cached_tokens=2**32 - 1)

    async with ScriptedWorker(script=too_much) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        generation = await router.service.generate(request(20, 21, max_tokens=5, n=2, logprobs=0))
        pieces = await collect(generation)
        for index in (0, 1):
            own = [piece for piece in pieces if piece.index == index]
            assert [token for piece in own for token in piece.tokens] == [20] * 5
            assert sum(len(piece.logprobs) for piece in own) == 5
        usage = generation.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, 10, 2)


async def test_no_more_is_kept_of_a_prompts_log_probabilities_than_the_prompt_has(tmp_path):
    def too_many(conversation, submit) -> None:
        for first in (1, 2, 2**32 - 1, 400):
            rows = pb.PromptLogprobs(handle=submit.choices[0].handle, first=first, given=[-1.0] * 900)
            handles = [submit.choices[0].handle]
            conversation.send(_step(handles=handles, counts=[0], prompt_logprobs=[rows]))
        echo(conversation, submit)

    async with ScriptedWorker(script=too_many) as worker, running_router(worker, tmp_path=tmp_path) as router:
        await router.ready()
        for asked, count in ((0, 4), (None, 0)):
            generation = await router.service.generate(request(20, 21, 22, 23, max_tokens=2, prompt_logprobs=asked))
            assert await collect(generation)
            assert len(generation.prompt_logprobs) == count
            assert len(generation._flight._prompt) == max(0, count - 1)


async def test_a_policy_that_fails_costs_one_request_and_no_workers_stream(tmp_path, monkeypatch):
    """The request waits for credit; the report that brings it has it placed, on that worker's own stream."""

    def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("router.dispatch.placing.POLICIES", {"cost": broken})
    async with ScriptedWorker(first_load=load_report(credits=0)) as worker:
        async with running_router(worker, tmp_path=tmp_path, policy="cost") as router:
            await router.ready()
            task = asyncio.create_task(router.service.generate(request(20)))
            await until(lambda: router.metric("requests_queued", model="tiny") == 1, "the wait")
            worker.now.load(credits=1)
            with pytest.raises(Internal):
                await task
            assert len(worker.conversations) == 1
            assert not worker.now.over
