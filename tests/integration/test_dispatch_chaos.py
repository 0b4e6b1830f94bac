"""Requests of every kind over two workers that break in every way: each ends once, as it would have alone or in a typed error, and
nothing is left behind.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from router.request import GenerateRequest, Piece
from shared import errors
from shared.types import Tenant
from tests.fakes.engine import FakeWorker, fake_worker
from tests.fakes.executor import alone
from tests.fakes.router import Router, request, running_router
from tests.fakes.scripted_worker import until
from worker.plan import StepPlan

REQUESTS = 240
EVERY = 12  # requests, between two breakdowns
FEW: dict[str, Any] = {"max_waiting": 6, "max_waiting_per_tenant": 6, "blocks": 40}


def drawn(number: int, draw: random.Random) -> GenerateRequest:
    """Short and long prompts, one choice and several, with and without a deadline."""
    prompt = [draw.randrange(3, 200) for _ in range(draw.choice((1, 5, 17, 40, 100)))]
    return request(
        *prompt,
        tenant=Tenant(id=f"t{number % 3}"),
        timeout=draw.choice((None, None, None, None, 0.002, 0.05)),
        n=draw.choice((1, 1, 2, 3)),
        max_tokens=draw.choice((1, 2, 9, 40)),
        temperature=draw.choice((0.0, 1.0)),
        seed=number,
        ignore_eos=draw.random() < 0.5,
    )


async def one(router: Router, worker: FakeWorker, asked: GenerateRequest, leave_after: int | None) -> str:
    """How it ended; fails where it gave anything else than it would have alone."""
    try:
        generation = await router.service.generate(asked)
        pieces: list[Piece] = []
        async for flush in generation:
            pieces += flush
            if leave_after is not None and len(pieces) > leave_after:
                await generation.aclose()
                return "left"
    except errors.OctavoError as error:
        return error.code
    for index in range(asked.n):
        own = [piece for piece in pieces if piece.index == index]
        assert [piece.ended is not None for piece in own] == [False] * (len(own) - 1) + [True]
        assert [token for piece in own for token in piece.tokens] == foretold(worker, asked, index)
    return "ok"


def foretold(worker: FakeWorker, asked: GenerateRequest, index: int) -> list[int]:
    """What the fake model gives for this choice, wherever it runs."""
    prompt, options = asked.prompt.tokens, asked.sampling
    return alone(
        prompt,
        options,
        choice=index,
        vocab=worker.config.vocab_size,
        eos=worker.config.eos_token_ids,
        limit=min(len(prompt) + options.max_tokens, worker.config.max_model_len),
    )


async def break_down(worker: FakeWorker, how: str) -> None:
    match how:
        case "cut":
            worker.hub.end_streams(errors.Unavailable("cut"))
        case "hold":
            worker.gate.hold()
            asyncio.get_running_loop().call_later(0.05, worker.gate.open)
        case "fail":
            worker.gate.fails = once_failing()
        case "flush":
            await worker.hub.engine.flush_cache()


def once_failing() -> Any:
    left = [RuntimeError("the device hiccups")]

    def fails(plan: StepPlan) -> Exception | None:
        return left.pop() if left else None

    return fails


async def passing(router: Router, tasks: list["asyncio.Task[str]"]) -> None:
    """Let the router's time pass, slowly enough for workers to report, until every request has ended: a broken worker is tried again
    after a pause, and a request may have to wait for that.
    """
    try:
        async with asyncio.timeout(60):
            while not all(task.done() for task in tasks):
                router.clock.advance(0.02)
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"{sum(not task.done() for task in tasks)} requests did not end")


@pytest.mark.parametrize("seed", [1, 2])
async def test_router_case_29_whatever_breaks_each_request_ends_once_and_nothing_is_left(tmp_path, seed: int) -> None:
    draw = random.Random(seed)
    async with fake_worker(info={"worker_id": "a"}, **FEW) as a, fake_worker(info={"worker_id": "b"}, **FEW) as b:
        async with running_router(a.target, b.target, tmp_path=tmp_path) as router:
            await router.ready(workers=2)
            tasks = []
            for number in range(REQUESTS):
                leave_after = draw.choice((None, None, None, 0, 3))
                tasks.append(asyncio.create_task(one(router, a, drawn(number, draw), leave_after)))
                if draw.random() < 0.1:
                    asyncio.get_running_loop().call_later(draw.uniform(0, 0.05), tasks[-1].cancel)
                if number % EVERY == 0:
                    await break_down(draw.choice((a, b)), draw.choice(("cut", "hold", "fail", "flush")))
                if number % 4 == 0:
                    await asyncio.sleep(draw.uniform(0, 0.02))
            await passing(router, tasks)
            ends = Counter("cancelled" if task.cancelled() else task.result() for task in tasks)
            assert set(ends) <= {
                "ok",
                "left",
                "cancelled",
                "overloaded",
                "unavailable",
                "deadline_exceeded",
                "internal_error",
                "poison_request",  # of one that both workers broke under
            }
            assert ends["ok"] > REQUESTS / 6, ends
            await until(lambda: router.service._dispatcher.flights == 0, "the last flight's end")
            assert router.metric("requests_in_flight", model="tiny") == 0
            assert router.metric("requests_queued", model="tiny") == 0
            await a.whole()
            await b.whole()
