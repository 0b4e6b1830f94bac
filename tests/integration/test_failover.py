"""Workers that are lost in the middle of a stream: it goes on elsewhere, and nobody can tell from what comes.

Each request runs once in peace and once under a loss; both must give the same.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from router.request import GenerateRequest, Piece, Usage
from shared import errors
from shared.types import RejectCode, Tenant
from tests.fakes.cable import Cable, cable
from tests.fakes.engine import FakeWorker, fake_worker
from tests.fakes.router import QUICK, Router, collect, request, running_router, text_of
from tests.fakes.scripted_worker import ScriptedWorker, echo, load_report, until

LONG = 24  # output tokens
LENIENT = replace(QUICK, breaker_failures=1_000)  # these tests break the same workers again and again
STEP = 0.02  # seconds of the router's clock a poll: workers report in good time


def asked(number: int = 0, **changes: Any) -> GenerateRequest:
    """A request that runs its full length."""
    return request(*range(20 + number, 60 + number), **({"max_tokens": LONG, "ignore_eos": True, "seed": 5} | changes))


@dataclass(kw_only=True)
class Seen:
    """What a caller saw, choice by choice."""

    tokens: dict[int, list[int]]
    text: dict[int, str]
    logprobs: dict[int, list[float]]
    ends: dict[int, Any]
    prompt: Sequence[Any]
    usage: Usage


def seen(pieces: list[Piece], generation: Any) -> Seen:
    """All that `pieces` say; fails where a choice has not exactly one end, in its last piece."""
    indexes = sorted({piece.index for piece in pieces})
    of = {index: [piece for piece in pieces if piece.index == index] for index in indexes}
    for own in of.values():
        assert [piece.ended is not None for piece in own] == [False] * (len(own) - 1) + [True]
    usage: Usage = generation.usage
    return Seen(
        tokens={index: [token for piece in own for token in piece.tokens] for index, own in of.items()},
        text={index: text_of(pieces, index) for index in indexes},
        logprobs={index: [row.sampled.logprob for piece in own for row in piece.logprobs] for index, own in of.items()},
        ends={index: own[-1].ended for index, own in of.items()},
        prompt=[row.sampled if row else None for row in generation.prompt_logprobs],
        usage=Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cached_tokens=0),
    )


@dataclass(kw_only=True)
class Stage:
    """Two workers behind cables, and a router before them."""

    router: Router
    workers: dict[str, FakeWorker]
    cables: dict[str, Cable]

    async def quiet(self, one: GenerateRequest) -> Seen:
        """As nothing happens."""
        generation = await self.router.service.generate(one)
        return seen(await collect(generation), generation)

    def hold(self) -> None:
        for worker in self.workers.values():
            worker.gate.hold()

    def there(self, name: str) -> int:
        """Choices that a worker has."""
        return sum(len(stream.book.handles) for stream in self.workers[name].hub._streams.values())

    def made(self) -> int:
        """Tokens that have come to the router for what runs."""
        return sum(flight.usage().completion_tokens for flight in self.router.service._dispatcher._flights)

    async def lose(self, name: str, how: str) -> None:
        """Have the router lose a worker."""
        worker = self.workers[name]
        match how:
            case "cut":
                worker.hub.end_streams(errors.Unavailable("cut"))
            case "killed":
                await worker.server.stop(None)
            case "silent":
                self.cables[name].pull()
                await self.until_silent()

    async def until_silent(self) -> None:
        """Let the router's time pass until it has given up a worker that says nothing."""
        down = lambda: self.router.metric("workers", state="down")  # noqa: E731
        await until(lambda: self.router.clock.advance(STEP) or down(), "a dead worker")


@asynccontextmanager
async def stage(tmp_path: Path, *, b: dict[str, Any] | None = None, **dispatch: Any) -> AsyncIterator[Stage]:
    """Ready; `b` are facts of the second worker."""
    facts = {"worker_id": "b"} | (b or {})
    async with fake_worker(info={"worker_id": "a"}) as first, fake_worker(info=facts) as second:
        async with cable(first.target) as one, cable(second.target) as two:
            # Both have work, whatever is cached where; and the other worker may still be on its way back.
            settings = {"policy": "least_loaded", "resume_wait": 60.0} | dispatch
            async with running_router(one.target, two.target, tmp_path=tmp_path, link=LENIENT, **settings) as router:
                await router.ready(workers=2)
                yield Stage(router=router, workers={"a": first, "b": second}, cables={"a": one, "b": two})


def assert_same(given: list[Seen], quiet: list[Seen]) -> None:
    """Field by field, so that a difference is told in few words."""
    for one, other in zip(given, quiet, strict=True):
        for name in Seen.__dataclass_fields__:
            assert getattr(one, name) == getattr(other, name), name


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded, three choices, with logprobs": {"temperature": 1.0, "n": 3, "logprobs": 0},
    "with the prompt's logprobs": {"prompt_logprobs": 0},
    "with stop tokens after a minimum": {"stop_token_ids": tuple(range(0, 260, 5)), "min_tokens": 8},
    "of the model's own end": {"ignore_eos": False, "max_tokens": 60},
}


async def begin(stage: Stage, requests: Sequence[GenerateRequest], steps: int) -> list["asyncio.Task[Seen]"]:
    """Have all of them run, both workers held after `steps` more steps."""
    stage.hold()
    tasks = [asyncio.create_task(stage.quiet(one)) for one in requests]
    wanted = sum(one.n for one in requests)
    await until(lambda: sum(map(stage.there, stage.workers)) == wanted, "all of them at workers")
    for worker in stage.workers.values():
        worker.gate.allow(steps)
    await until(lambda: all(w.gate.waiting or not stage.there(n) for n, w in stage.workers.items()), "the held steps")
    return tasks


@pytest.mark.parametrize("how", ["cut", "killed", "silent"])
@pytest.mark.parametrize("kind", KINDS)
async def test_streams_of_a_lost_worker_go_on_without_a_seam(tmp_path, kind, how):
    requests = [asked(number, **KINDS[kind]) for number in range(4)]
    async with stage(tmp_path) as set_up:
        quiet = [await set_up.quiet(one) for one in requests]
        tasks = await begin(set_up, requests, steps=9)
        assert set_up.there("a") > 0
        assert set_up.there("b") > 0
        await until(lambda: all(flight.begun for flight in set_up.router.service._dispatcher._flights), "tokens of all")
        set_up.workers["b"].gate.open()
        await set_up.lose("a", how)
        assert_same(await asyncio.gather(*tasks), quiet)
        assert set_up.router.metric("resubmits_total", model="tiny", reason="lost") >= 1
        assert set_up.router.metric("resumed_total", model="tiny", numerics="exact") >= 1
        assert set_up.router.service._dispatcher.flights == 0
        await set_up.workers["b"].whole()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 11, 23, 24, 25, 26])
async def test_it_does_not_matter_when_a_worker_is_lost(tmp_path, steps):
    """Before the first token, between any two, after the last one and before the end is told."""
    requests = [asked(number, n=2, logprobs=0) for number in range(2)]
    async with stage(tmp_path) as set_up:
        quiet = [await set_up.quiet(one) for one in requests]
        tasks = await begin(set_up, requests, steps)
        set_up.workers["b"].gate.open()
        await set_up.lose("a", "cut")
        set_up.workers["a"].gate.open()
        assert await asyncio.gather(*tasks) == quiet


async def test_a_stop_string_may_lie_across_the_seam(tmp_path):
    plain = asked(temperature=1.0)
    async with stage(tmp_path) as set_up:
        whole = (await set_up.quiet(plain)).text[0]
        middle = next(
            at
            for at in range(8, len(whole))
            if whole.find(whole[at : at + 4]) == at and whole[at : at + 4].isprintable()
        )
        stopped = asked(temperature=1.0, stop=(whole[middle : middle + 4],))
        quiet = await set_up.quiet(stopped)
        for steps in range(8, 16):
            (task,) = await begin(set_up, [stopped], steps)
            there = "a" if set_up.there("a") else "b"
            set_up.workers["b" if there == "a" else "a"].gate.open()
            await set_up.lose(there, "cut")
            set_up.workers[there].gate.open()
            assert await task == quiet
            await set_up.router.ready(workers=2)


async def test_a_stream_outlives_every_worker_that_it_meets(tmp_path):
    """It gets some tokens of each before that is lost."""
    one = asked(n=2, temperature=1.0, max_tokens=60)
    async with stage(tmp_path) as set_up:
        quiet = await set_up.quiet(one)
        set_up.hold()
        task = asyncio.create_task(set_up.quiet(one))
        for _ in range(5):
            there = await until(
                lambda: next((name for name in "ab" if set_up.there(name)), None), "the request somewhere"
            )
            before = set_up.made()
            set_up.workers[there].gate.allow(4)
            await until(lambda before=before: set_up.made() > before, "tokens")
            set_up.workers[there].hub.end_streams(errors.Unavailable("cut"))
            set_up.workers[there].gate.allow(2)
            await until(lambda there=there: not set_up.there(there), "the end of it there")
            set_up.workers[there].gate.hold()
            await set_up.router.ready(workers=2)
        for worker in set_up.workers.values():
            worker.gate.open()
        assert await task == quiet


async def test_other_numerics_are_marked_and_the_same_preferred(tmp_path):
    one = asked(max_tokens=LONG)
    async with stage(tmp_path, b={"numerics_id": "other"}) as set_up:
        set_up.hold()
        generation_task = asyncio.create_task(set_up.router.service.generate(one))
        there = await until(lambda: next((name for name in "ab" if set_up.there(name)), None), "the request somewhere")
        set_up.workers[there].gate.allow(5)
        generation = await generation_task
        await until(lambda: set_up.made() > 0, "tokens")
        assert generation.resumed == ""
        set_up.workers["b" if there == "a" else "a"].gate.open()
        await set_up.lose(there, "killed")
        pieces = await collect(generation)
        assert sum(len(piece.tokens) for piece in pieces) == LONG
        assert generation.resumed == "inexact"
        set_up.workers[there].gate.open()


async def test_exact_resumption_fails_where_only_other_numerics_are_left(tmp_path):
    async with stage(tmp_path, b={"numerics_id": "other"}, resume="exact", resume_wait=0.0) as set_up:
        set_up.hold()
        task = asyncio.create_task(set_up.quiet(asked()))
        there = await until(lambda: next((name for name in "ab" if set_up.there(name)), None), "the request somewhere")
        set_up.workers[there].gate.allow(5)
        await until(lambda: set_up.made() > 0, "tokens")
        set_up.workers["b" if there == "a" else "a"].gate.open()
        await set_up.lose(there, "killed")
        with pytest.raises(errors.Unavailable):
            await task
        set_up.workers[there].gate.open()


# ---- where it may go


async def test_a_begun_stream_waits_for_a_worker_that_comes(tmp_path):
    async with ScriptedWorker(worker_id="a") as old:
        async with running_router(old, tmp_path=tmp_path, resume_wait=60.0) as router:
            await router.ready()
            task = asyncio.create_task(router.service.generate(request(20, 21, 22, max_tokens=3)))
            handle = (await old.submits())[0].choices[0].handle
            old.now.tokens(handle, [20])
            generation = await task
            await old.stop()
            await until(lambda: router.metric("requests_queued", model="tiny") == 1, "the wait")
            async with ScriptedWorker(worker_id="new", port=old.port) as new:
                resumed = (await new.submits())[0]
                assert [list(choice.output_tokens) for choice in resumed.choices] == [[20]]
                assert (resumed.resumed, resumed.numerics_id) == (True, "n")
                new.now.tokens(resumed.choices[0].handle, [21, 22])
                new.now.finish(resumed.choices[0].handle, 3)
                pieces = await collect(generation)
                assert [token for piece in pieces for token in piece.tokens] == [20, 21, 22]
                assert generation.usage.completion_tokens == 3


async def test_what_ended_before_the_loss_is_not_asked_again(tmp_path):
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            task = asyncio.create_task(router.service.generate(request(n=3, max_tokens=2)))
            await until(lambda: one.now.submits or two.now.submits, "the submit")
            first, second = (one, two) if one.now.submits else (two, one)
            handles = [choice.handle for choice in first.now.submits[0].choices]
            first.now.tokens(handles[0], [20, 21])
            first.now.finish(handles[0], 2)
            first.now.tokens(handles[1], [30, 31])  # its end is not told
            first.now.tokens(handles[2], [40])
            generation = await task
            await until(
                lambda: (
                    router.metric("output_tokens_total", model="tiny") >= 0 and generation.usage.completion_tokens == 5
                ),
                "5 tokens",
            )
            first.now.drop()
            resumed = (await second.submits())[0]
            assert [(choice.index, list(choice.output_tokens)) for choice in resumed.choices] == [(2, [40])]
            second.now.tokens(resumed.choices[0].handle, [41])
            second.now.finish(resumed.choices[0].handle, 2)
            ends = seen(await collect(generation), generation)
            assert ends.tokens == {0: [20, 21], 1: [30, 31], 2: [40, 41]}
            assert {end.reason for end in ends.ends.values()} == {"length"}
            assert ends.usage.completion_tokens == 6


async def test_a_request_that_kills_two_workers_is_refused_as_poison(tmp_path):
    def kill(conversation, submit) -> None:
        if 99 in submit.prompt_tokens:
            conversation.drop()
        else:
            echo(conversation, submit)

    workers = [ScriptedWorker(script=kill, worker_id=name) for name in "abcd"]
    async with workers[0], workers[1], workers[2], workers[3]:
        async with running_router(*workers, tmp_path=tmp_path, resume_wait=60.0) as router:
            await router.ready(workers=4)
            with pytest.raises(errors.Internal) as refused:
                await collect(await router.service.generate(request(99)))
            assert refused.value.code == "poison_request"
            submits = [submit for w in workers for talk in w.conversations for submit in talk.submits]
            assert len(submits) == 2
            await router.ready(workers=4)
            assert await collect(await router.service.generate(request(20)))


async def test_those_that_were_with_a_poison_request_do_not_go_down_with_it(tmp_path):
    """All wait for their first token when both workers are killed; one at a time they are tried alone, and the killer is refused."""

    def kill(conversation, submit) -> None:
        if 99 in submit.prompt_tokens:
            conversation.drop()
        elif len(conversation.worker.conversations) > 1 or conversation.worker.info.worker_id == "c":
            echo(conversation, submit)

    workers = [
        ScriptedWorker(script=kill, worker_id=name, first_load=load_report(running=n)) for n, name in enumerate("abc")
    ]
    async with workers[0], workers[1], workers[2]:
        async with running_router(*workers, tmp_path=tmp_path, resume_wait=60.0) as router:
            await router.ready(workers=3)
            good = [asyncio.create_task(router.service.generate(request(20 + number))) for number in range(4)]
            await until(lambda: sum(len(w.now.submits) for w in workers) == 4, "the submits")
            bad = asyncio.create_task(router.service.generate(request(99)))
            for task in good:
                assert await collect(await task)
            with pytest.raises(errors.OctavoError):
                await collect(await bad)


async def test_router_case_27_a_retry_never_lands_on_the_worker_that_failed_even_if_it_is_idle(tmp_path):
    """The failed one is back at once and idle, the other busy: the stream goes to the busy one."""
    async with ScriptedWorker(worker_id="a") as one, ScriptedWorker(worker_id="b") as two:
        async with running_router(one, two, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            task = asyncio.create_task(router.service.generate(request(20, 21, max_tokens=2)))
            await until(lambda: one.now.submits or two.now.submits, "the submit")
            first, second = (one, two) if one.now.submits else (two, one)
            first.now.tokens(first.now.submits[0].choices[0].handle, [20])
            generation = await task
            second.now.load(credits=0, running=50)
            await until(
                lambda: (
                    router.service._fleet.links[0].view(0) is None or router.service._fleet.links[1].view(0) is None
                ),
                "no credit",
            )
            first.now.drop()
            await until(lambda: len(first.conversations) == 2, "the failed worker's return")
            await router.ready(workers=2)
            assert first.now.submits == []
            assert second.now.submits == []
            second.now.load(credits=1, running=50)
            resumed = (await second.submits())[0]
            second.now.tokens(resumed.choices[0].handle, [21])
            second.now.finish(resumed.choices[0].handle, 2)
            assert [t for piece in await collect(generation) for t in piece.tokens] == [20, 21]
            assert first.now.submits == []


async def test_retries_of_rejected_requests_are_a_share_of_all_requests(tmp_path):
    def refuse(conversation, submit) -> None:
        conversation.load()
        conversation.reject(submit.seq, RejectCode.QUEUE_FULL)

    async def refused(router: Router, number: int) -> None:
        with pytest.raises(errors.Overloaded):
            await collect(await router.service.generate(request(20 + number, tenant=Tenant(id=f"t{number}"))))

    workers = [ScriptedWorker(script=refuse, worker_id=name) for name in "abc"]
    async with workers[0], workers[1], workers[2]:
        async with running_router(*workers, tmp_path=tmp_path, retry_share=0.1, retry_burst=5.0) as router:
            await router.ready(workers=3)
            await asyncio.gather(*(refused(router, number) for number in range(100)))
            assert 100 < sum(len(worker.now.submits) for worker in workers) <= 100 + 5 + 10
