"""Work that lasts as long as its client stays."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`, and cancels it if the client leaves first. The request's body must have been read."""
    task, watcher = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
