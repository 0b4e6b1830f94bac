"""The gate counts, bounds, closes and refuses."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from router.edge.gate import MAX_TEXT_CALLS, Gate
from router.request import GenerateRequest, TextPrompt
from router.tenancy.caller import OPEN_CALLER, Caller
from shared.errors import Overloaded, Unavailable
from shared.types import Tenant
from tests.fakes.service import FakeService

ASK = GenerateRequest(model="tiny", prompt=TextPrompt(text="a"))


@pytest.mark.parametrize(
    ("asked", "server", "expected"), [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (9, 7, 7)]
)
async def test_the_shorter_timeout_holds(asked: float | None, server: float | None, expected: float | None) -> None:
    service = FakeService()
    async with Gate(service, timeout=server).open(replace(ASK, timeout=asked)):
        pass
    assert service.requests[0].timeout == expected


async def test_leaving_the_block_closes_the_generation_whichever_way() -> None:
    service = FakeService()
    gate = Gate(service)
    async with gate.open(ASK):
        assert gate.open_generations == 1
    with pytest.raises(ZeroDivisionError):
        async with gate.open(ASK):
            raise ZeroDivisionError
    assert all(generation.closed.is_set() for generation in service.generations)
    assert gate.open_generations == 0
    await asyncio.wait_for(gate.idle(), 5)


async def test_a_refused_request_is_not_counted() -> None:
    gate = Gate(FakeService(refuse=Overloaded("full")))
    with pytest.raises(Overloaded):
        async with gate.open(ASK):
            pass
    assert gate.open_generations == 0


async def test_a_cancelled_admission_is_not_counted() -> None:
    service = FakeService()
    service.admit.clear()
    gate = Gate(service)

    async def ask() -> None:
        async with gate.open(ASK):
            pass

    task = asyncio.create_task(ask())
    await asyncio.wait_for(service.entered.wait(), 5)
    assert gate.open_generations == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.open_generations == 0


async def test_a_shut_gate_refuses_but_waits_for_what_runs() -> None:
    gate = Gate(FakeService())
    async with gate.open(ASK):
        gate.close()
        assert not gate.ready()
        with pytest.raises(Unavailable):
            async with gate.open(ASK):
                pass
        idle = asyncio.create_task(gate.idle())
        await asyncio.sleep(0)
        assert not idle.done()
    await asyncio.wait_for(idle, 5)


class Slow(FakeService):
    """Whose texts wait for `admit`."""

    async def detokenize(
        self, model: str, tokens: Sequence[int], skip: bool = False, *, caller: Caller = OPEN_CALLER
    ) -> str:
        await self.admit.wait()
        return ""


async def test_texts_that_wait_to_be_read_are_bounded_and_their_places_come_back() -> None:
    service = Slow()
    service.admit.clear()
    gate = Gate(service)
    for _ in range(2):
        waiting = [asyncio.create_task(gate.detokenize("tiny", [1], caller=OPEN_CALLER)) for _ in range(MAX_TEXT_CALLS)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await gate.detokenize("tiny", [1], caller=OPEN_CALLER)
        with pytest.raises(Overloaded):
            await gate.tokenize("tiny", TextPrompt(text="a"), caller=OPEN_CALLER)
        service.admit.set()
        await asyncio.gather(*waiting)
        service.admit.clear()


async def test_one_tenants_texts_leave_room_for_anothers() -> None:
    service = Slow()
    service.admit.clear()
    gate = Gate(service)
    greedy, modest = (Caller(tenant=Tenant(id=name)) for name in ("greedy", "modest"))
    asked = [asyncio.create_task(gate.detokenize("tiny", [1], caller=greedy)) for _ in range(MAX_TEXT_CALLS)]
    await asyncio.sleep(0)
    asked += [asyncio.create_task(gate.detokenize("tiny", [1], caller=modest)) for _ in range(MAX_TEXT_CALLS)]
    await asyncio.sleep(0)
    service.admit.set()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    refused = [isinstance(end, Overloaded) for end in ends]
    assert refused == [number >= 48 for number in range(64)] + [number >= 16 for number in range(64)]
