"""A batch merges its generations, waits for all of them, and leaves none behind."""

import asyncio
from contextlib import aclosing

import pytest

from router.edge.gate import Gate
from router.edge.http.batch import Batch
from router.request import Ended, GenerateRequest, Piece, TextPrompt
from shared.errors import Internal, Unavailable
from tests.fakes.scripted_worker import until
from tests.fakes.service import WORDS, FakeService


def asks(count: int, n: int = 1) -> list[GenerateRequest]:
    return [GenerateRequest(model="tiny", prompt=TextPrompt(text="a"), n=n) for _ in range(count)]


async def everything(batch: Batch) -> list[Piece]:
    async with aclosing(batch.flushes()) as flushes:
        return [piece async for flush in flushes for piece in flush]


async def test_choices_are_numbered_prompt_by_prompt() -> None:
    async with Batch(Gate(FakeService()), asks(3, n=2)) as batch:
        pieces = await everything(batch)
    for index in range(6):
        assert "".join(piece.text for piece in pieces if piece.index == index) == "".join(WORDS)
    assert batch.usage.completion_tokens == 6 * len(WORDS)
    assert batch.choices == 6


@pytest.mark.parametrize("count", [1, 2])
async def test_a_slow_reader_holds_the_generations_up_without_losing_a_piece(count: int) -> None:
    ended = Ended(reason="stop")

    def many(_: GenerateRequest) -> list[tuple[Piece, ...]]:
        flushes = [(Piece(index=0, text=f"{i},", tokens=(i,)),) for i in range(200)]
        return [*flushes, (Piece(index=0, text="", ended=ended),)]

    service = FakeService(script=many)
    async with Batch(Gate(service), asks(count)) as batch, aclosing(batch.flushes()) as flushes:
        pieces = list(await anext(flushes))
        for _ in range(100):
            await asyncio.sleep(0)
        assert all(generation.completed < 50 for generation in service.generations)
        pieces += [piece async for flush in flushes for piece in flush]
    assert len(pieces) == count * 201


async def test_a_reader_of_one_that_leaves_closes_it() -> None:
    service = FakeService(hold_at=1)
    gate = Gate(service)
    async with Batch(gate, asks(1)) as batch:
        async with aclosing(batch.flushes()) as flushes:
            await anext(flushes)
            assert gate.open_generations == 1
        assert gate.open_generations == 0
    assert service.generations[0].closed.is_set()


async def test_the_first_failure_ends_the_batch_and_closes_the_rest() -> None:
    service = FakeService(hold_at=1, fail_at=1)
    gate = Gate(service)
    async with Batch(gate, asks(3)) as batch:
        await until(lambda: len(service.generations) == 3)
        service.generations[1].failure = Unavailable("gone")
        service.generations[1].release.set()
        with pytest.raises(Unavailable):
            await everything(batch)
    assert gate.open_generations == 0
    assert all(generation.closed.is_set() for generation in service.generations)


async def test_leaving_early_closes_everything_even_with_a_full_queue() -> None:
    service = FakeService(script=lambda _: [(Piece(index=0, text="x", tokens=(1,)),)] * 1_000)
    gate = Gate(service)
    async with Batch(gate, asks(4)):
        for _ in range(50):
            await asyncio.sleep(0)
    assert gate.open_generations == 0
    assert all(generation.closed.is_set() for generation in service.generations)


async def test_a_generation_that_ends_too_soon_is_our_fault() -> None:
    service = FakeService(script=lambda _: [(Piece(index=0, text="x", tokens=(1,)),)])
    with pytest.raises(Internal):
        async with Batch(Gate(service), asks(1)) as batch:
            await everything(batch)
