"""Who comes to the door alone passes at once; of many that come together, few pass between two looks at what else has come."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from router.edge.door import Door
from router.tenancy.caller import OPEN_CALLER
from tests.fakes.service import FakeService


def begins(coroutine: Coroutine[Any, Any, None]) -> bool:
    """Whether it ends without waiting."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.close()
    return False


async def test_the_first_of_a_turn_waits_for_nothing_and_the_next_for_the_loop() -> None:
    door = Door(FakeService())
    assert begins(door.enter(OPEN_CALLER))
    assert not begins(door.enter(OPEN_CALLER))
    await asyncio.sleep(0)
    assert begins(door.enter(OPEN_CALLER))


async def test_of_many_that_come_at_once_the_loop_turns_between_them() -> None:
    door, passed, most = Door(FakeService()), 0, 0

    async def enter() -> None:
        nonlocal passed
        await door.enter(OPEN_CALLER)
        passed += 1

    tasks = [asyncio.create_task(enter()) for _ in range(50)]
    while not all(task.done() for task in tasks):
        before = passed
        await asyncio.sleep(0)
        most = max(most, passed - before)
    assert passed == 50
    assert most <= 2
