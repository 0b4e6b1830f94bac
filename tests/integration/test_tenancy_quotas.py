"""Limits over several routers of one host, what is told of them, and that the ledger has what reached clients: to the token, and once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import inference_pb2 as pb
from router.tenancy.quotas import Quotas
from shared import errors
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeWorker, fake_worker
from tests.fakes.scripted_worker import until
from tests.fakes.tenancy import NOW, add
from tests.fakes.tenanted import Tenanted, host, tenanted


@asynccontextmanager
async def open_host(
    path: Path, routers: int, clock: FakeClock | None = None, **worker: Any
) -> AsyncIterator[tuple[FakeWorker, list[Tenanted]]]:
    timed = {} if clock is None else {"clock": clock}
    async with fake_worker(**worker) as fake, host(path, [fake.target], routers, **timed) as all_of_them:
        yield fake, all_of_them


async def known(routers: list[Tenanted]) -> None:
    for router in routers:
        await router.known()


async def test_router_case_25_a_limit_is_one_limit_whatever_the_number_of_routers(tmp_path: Path) -> None:
    """BerriAI/litellm 13202: 3 routers, 60 requests a minute: any minute accepts no more than 60."""
    clock = FakeClock(NOW)
    async with open_host(tmp_path, 3, clock) as (_, routers):
        key = await add(routers[0].store, "acme", requests_per_minute=60)
        await known(routers)
        accepted: list[float] = []
        for turn in range(60):  # 2 minutes of 90 requests each, in bursts of 9
            answers = await asyncio.gather(
                *(routers[i % 3].post(key, max_tokens=1) for i in range(9 if turn % 3 else 0))
            )
            accepted += [clock() for answer in answers if answer.status_code == 200]
            assert {answer.status_code for answer in answers} <= {200, 429}
            clock.advance(2)
        most = max(sum(start <= at < start + 60 for at in accepted) for start in accepted)
        assert most == 60
        assert len(accepted) >= 118  # and all of it may be used, minute by minute
        assert len(await routers[1].charges()) == len(accepted)


async def test_router_case_26_long_streams_are_debited_by_what_they_make(tmp_path: Path) -> None:
    """BerriAI/litellm 10555, aibrix 848: output tokens count as they are made; no minute has more than its limit and one request."""
    clock = FakeClock(NOW)
    async with open_host(tmp_path, 2, clock, info={"max_running": 16}, blocks=256) as (_, routers):
        key = await add(routers[0].store, "acme", output_tokens_per_minute=100)
        await known(routers)
        made: list[tuple[float, int]] = []
        for _ in range(10):
            answers = await asyncio.gather(*(routers[i % 2].post(key, max_tokens=30) for i in range(8)))
            whole = [answer.json()["usage"]["completion_tokens"] for answer in answers if answer.status_code == 200]
            made += [(clock(), tokens) for tokens in whole]
            clock.advance(15)
        most = max(sum(tokens for at, tokens in made if start <= at < start + 60) for start, _ in made)
        assert 90 <= most <= 100
        clock.advance(61)
        assert (await routers[0].post(key, max_tokens=1)).status_code == 200
        refused = await routers[0].post(key, max_tokens=200)  # more than a minute has: alone, in an empty one
        assert refused.status_code == 429
        clock.advance(61)
        assert (await routers[0].post(key, max_tokens=200)).status_code == 200
        assert (await routers[1].post(key, max_tokens=1)).status_code == 429


async def test_a_chat_without_max_tokens_holds_what_the_context_leaves(tmp_path: Path) -> None:
    async with open_host(tmp_path, 1) as (worker, (router,)):
        key = await add(router.store, "acme", output_tokens_per_minute=300)
        await router.known()
        worker.gate.hold()
        chat = {"prompt": None, "messages": [{"role": "user", "content": "hi"}], "max_tokens": None}
        running = asyncio.create_task(router.post(key, "/v1/chat/completions", **chat))
        await until(lambda: worker.gate.waiting, "the first step")
        assert (await router.post(key, "/v1/chat/completions", **chat)).status_code == 429
        worker.gate.open()
        assert (await running).status_code == 200


async def test_answers_tell_the_rates_and_refusals_when_to_come_again(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    async with open_host(tmp_path, 1, clock) as (_, (router,)):
        key = await add(router.store, "acme", requests_per_minute=2, prompt_tokens_per_minute=100)
        await router.known()
        whole = await router.post(key)
        assert whole.headers["x-ratelimit-limit-requests"] == "2"
        assert whole.headers["x-ratelimit-remaining-requests"] == "1"
        assert whole.headers["x-ratelimit-limit-tokens"] == whole.headers["x-ratelimit-limit-prompt-tokens"] == "100"
        assert whole.headers["x-ratelimit-remaining-tokens"] == "97"
        assert whole.headers["x-ratelimit-reset-requests"].startswith("1m0")
        clock.advance(20)
        streamed = await router.post(key, stream=True)
        assert streamed.headers["x-ratelimit-remaining-requests"] == "0"
        refused = await router.post(key)
        assert refused.status_code == 429
        assert 40 <= int(refused.headers["retry-after"]) <= 41
        assert 40_000 <= int(refused.headers["retry-after-ms"]) <= 40_250
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        clock.advance(int(refused.headers["retry-after-ms"]) / 1000)
        assert (await router.post(key)).status_code == 200
        ask = pb.GenerateRequest(model="tiny", prompt="a", sampling=pb.Sampling(max_tokens=1))
        call = router.stub.Generate(ask, metadata=(("x-api-key", key),))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        told = dict(caught.value.trailing_metadata() or ())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert told["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(
    ("limits", "body", "param"),
    [
        ({"max_n": 2}, {"n": 3}, "n"),
        ({"max_context": 20}, {"max_tokens": 30}, "max_tokens"),
        ({"max_context": 20}, {"prompt": [9] * 25, "max_tokens": 1}, "prompt"),
        ({"prompt_tokens_per_minute": 10}, {"prompt": [9] * 25, "max_tokens": 1}, "prompt"),
    ],
)
async def test_what_a_tenant_may_never_ask_is_named(
    tmp_path: Path, limits: dict[str, int], body: dict[str, Any], param: str
) -> None:
    async with open_host(tmp_path, 1) as (_, (router,)):
        key = await add(router.store, "acme", **limits)
        await router.known()
        answer = await router.post(key, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert (await router.post(key)).status_code == 200


async def test_concurrency_is_one_bound_over_all_routers(tmp_path: Path) -> None:
    async with open_host(tmp_path, 2) as (worker, routers):
        key = await add(routers[0].store, "acme", concurrent_requests=2)
        await known(routers)
        worker.gate.hold()
        running = [asyncio.create_task(router.post(key)) for router in routers]
        await until(
            lambda: worker.hub.engine.stats.waiting + worker.hub.engine.stats.running >= 2 or worker.gate.waiting,
            "both",
        )
        refused = await routers[0].post(key)
        while refused.status_code == 200:
            refused = await routers[0].post(key)
        assert refused.status_code == 429
        assert refused.json()["error"]["message"].startswith("the limit of 2 requests at once")
        worker.gate.open()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        assert (await routers[1].post(key)).status_code == 200


def usage_of(answer: Any) -> tuple[int, int, int]:
    usage = answer["usage"]
    return (
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
    )


async def test_the_ledger_equals_what_clients_were_told(tmp_path: Path) -> None:
    async with open_host(tmp_path, 2, blocks=256) as (_, routers):
        key = await add(routers[0].store, "acme")
        await known(routers)
        told = []
        asks: list[dict[str, Any]] = [
            {}, {"n": 3, "max_tokens": 7}, {"prompt": list(range(3, 60))}, {"prompt": list(range(3, 60)), "max_tokens": 2},
            {"echo": True, "max_tokens": 0}, {"prompt": [[5, 6], [7, 8, 9]], "max_tokens": 3},
            {"ignore_eos": False, "max_tokens": 40, "seed": 3},
        ]  # fmt: skip
        for number, ask in enumerate(asks):
            answer = await routers[number % 2].post(key, **ask)
            assert answer.status_code == 200, answer.text
            told.append(usage_of(answer.json()))
        streamed = await routers[0].post(key, stream=True, stream_options={"include_usage": True}, max_tokens=9)
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        told.append(usage_of(events[-1]))
        charges = await routers[1].charges()
        charged = [(c.prompt_tokens, c.cached_tokens, c.output_tokens) for c in charges]
        assert [sum(column) for column in zip(*charged, strict=True)] == [
            sum(column) for column in zip(*told, strict=True)
        ]
        assert {charge.worker for charge in charges} == {"w1"}
        assert {charge.finish for charge in charges} <= {"length", "stop"}


async def test_a_reader_that_leaves_pays_for_what_was_made(tmp_path: Path) -> None:
    async with open_host(tmp_path, 1) as (worker, (router,)):
        key = await add(router.store, "acme", concurrent_requests=1)
        await router.known()
        worker.gate.hold()
        worker.gate.allow(6)
        quotas = router.tenancy.admission
        assert isinstance(quotas, Quotas)
        asked = asyncio.create_task(router.post(key, stream=True, max_tokens=50))
        await until(lambda: quotas.used() == 6, "six tokens")
        asked.cancel()
        charges = await _once(router)
        worker.gate.open()
        await worker.whole()
        (charge,) = charges
        assert (charge.finish, charge.prompt_tokens, charge.output_tokens) == ("cancelled", 3, 6)
        assert (await router.post(key)).status_code == 200  # its place is free again


async def _once(router: Tenanted, count: int = 1) -> list[Any]:
    async with asyncio.timeout(20):
        while len(charges := await router.charges()) < count:
            await asyncio.sleep(0.01)
    return charges


async def test_what_never_ran_costs_nothing(tmp_path: Path) -> None:
    async with open_host(tmp_path, 1, max_waiting=1, max_waiting_per_tenant=1, max_running=1) as (worker, (router,)):
        key = await add(router.store, "acme", requests_per_minute=10, prompt_tokens_per_minute=100)
        await router.known()
        worker.gate.fails = lambda plan: RuntimeError("broken") if plan.samples else None
        failed = await router.post(key)
        assert failed.status_code >= 500
        await worker.whole()
        assert await router.charges() == []
        worker.gate.fails = lambda plan: None
        answer = await router.post(key)
        assert answer.headers["x-ratelimit-remaining-requests"] == "9"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "97"


async def test_a_replay_on_another_worker_is_charged_to_no_one(tmp_path: Path) -> None:
    second_info = {"worker_id": "w2"}
    async with fake_worker() as first, fake_worker(info=second_info) as second:
        async with tenanted(tmp_path, first.target, second.target) as router:
            key = await add(router.store, "acme")
            await router.known()
            await until(lambda: router.service.models()[0].workers == 2, "both workers")
            for worker in (first, second):
                worker.gate.hold()
                worker.gate.allow(5)
            asked = asyncio.create_task(router.post(key, max_tokens=20))
            await until(lambda: first.gate.waiting or second.gate.waiting, "some steps")
            had = first if first.gate.waiting else second
            had.hub.end_streams(errors.Unavailable("cut"))
            for worker in (first, second):
                worker.gate.open()
            answer = await asked
            assert answer.status_code == 200, answer.text
            (charge,) = await router.charges()
            assert usage_of(answer.json()) == (charge.prompt_tokens, charge.cached_tokens, charge.output_tokens)
            assert (charge.prompt_tokens, charge.output_tokens) == (3, 20)


async def test_what_a_router_lost_is_settled_by_another(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    async with fake_worker() as worker, tenanted(tmp_path, worker.target, clock=clock) as left:
        key = await add(left.store, "acme", concurrent_requests=1)
        await left.known()
        async with tenanted(tmp_path, worker.target, clock=clock) as lost:
            worker.gate.hold()
            worker.gate.allow(8)
            asked = asyncio.create_task(lost.post(key, max_tokens=40))
            quotas = lost.tenancy.admission
            assert isinstance(quotas, Quotas)
            await until(lambda: quotas.used() == 8, "eight tokens")
            await quotas.beat()  # as its timer does
            assert (await left.post(key)).status_code == 429
            clock.advance(10.5)  # the router is stuck
            assert await left.store.sweep() == 1
            (charge,) = await left.charges()
            assert (charge.finish, charge.prompt_tokens, charge.tenant) == ("lost", 3, "acme")
            assert charge.output_tokens == 8
            worker.gate.open()
            await asked
            assert len(await left.charges()) == 1  # it comes back to life, and is told that all is settled
            assert (await left.post(key)).status_code == 200


async def test_a_request_asks_the_store_once_before_it_runs_and_once_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does between; what runs is renewed every two seconds, all of it at once, and no token waits for that."""
    async with fake_worker() as worker, tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", requests_per_minute=10, output_tokens_per_minute=1_000)
        await router.known()
        asked: list[str] = []
        for name in ("reserve", "settle", "abandon"):
            step = getattr(router.store, name)

            async def counted(given: Any, name: str = name, step: Any = step) -> Any:
                asked.append(f"{name} after {len(worker.executor.plans)} steps")
                return await step(given)

            monkeypatch.setattr(router.store, name, counted)
        answer = await router.post(key, max_tokens=20)
        assert answer.json()["usage"]["completion_tokens"] == 20
        assert asked == ["reserve after 0 steps", f"settle after {len(worker.executor.plans)} steps"]
        assert len(worker.executor.plans) >= 20
