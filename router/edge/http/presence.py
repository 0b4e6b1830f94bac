"""Work that lasts as long as its client stays."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


class _Watch:
    """Cancels a task once the client has left. `left` says that it did."""

    def __init__(self, receive: Receive, task: "asyncio.Task[Any]"):
        self._receive = receive
        self._task = task
        self.left = False

    async def run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._task.cancel()


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`, and cancels it if the client leaves first. The request's body must have been read.

    It runs in the caller's own task: in one of its own it would begin a turn of the loop later.
    """
    task = asyncio.current_task()
    assert task is not None
    watch = _Watch(receive, task)
    watcher = asyncio.create_task(watch.run())
    try:
        await work
    except asyncio.CancelledError:
        if not watch.left or task.uncancel() > 0:
            raise
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})
