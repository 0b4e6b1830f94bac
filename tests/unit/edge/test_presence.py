"""Work ends with its client, and only then is a cancellation swallowed."""

import asyncio

import pytest

from router.edge.http.presence import until_gone


class Client:
    """An ASGI `receive`: it leaves when told to."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()

    async def __call__(self) -> dict[str, str]:
        await self.leave.wait()
        return {"type": "http.disconnect"}


class Work:
    """Waits for ever, or for `done`."""

    def __init__(self) -> None:
        self.begun, self.done, self.cancelled = asyncio.Event(), asyncio.Event(), False

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_work_is_cancelled_when_its_client_leaves_and_the_caller_goes_on() -> None:
    client, work = Client(), Work()

    async def serve() -> str:
        await until_gone(client, work.run())
        await asyncio.sleep(0)  # nothing of the cancellation is left
        return "went on"

    task = asyncio.create_task(serve())
    await work.begun.wait()
    client.leave.set()
    assert await asyncio.wait_for(task, 30) == "went on"
    assert work.cancelled


async def test_a_cancellation_from_outside_is_raised_even_where_the_client_left_too() -> None:
    for left in (False, True):
        client, work = Client(), Work()
        task = asyncio.create_task(until_gone(client, work.run()))
        await work.begun.wait()
        if left:
            client.leave.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        assert work.cancelled


async def test_work_that_ends_or_fails_leaves_no_watcher_behind() -> None:
    async def fail() -> None:
        raise ValueError("no")

    before = len(asyncio.all_tasks())
    work = Work()
    work.done.set()
    await until_gone(Client(), work.run())
    with pytest.raises(ValueError, match="no"):
        await until_gone(Client(), fail())
    assert not work.cancelled
    assert len(asyncio.all_tasks()) == before
