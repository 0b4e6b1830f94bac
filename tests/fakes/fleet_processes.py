"""Workers, and a router before them, as processes of their own; each is ended by pid."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from tests.conftest import ROOT

BOUND = 120.0  # seconds until a worker is ready, or has ended


class Child:
    """A worker or a router; `said` is what it told when it began to listen."""

    def __init__(self, process: asyncio.subprocess.Process):
        self.process = process
        self.said: dict[str, str] = {}

    @property
    def address(self) -> str:
        """A worker's."""
        return self.said["address"]

    async def listening(self) -> None:
        """Wait until it has told where."""
        self.said = await self._event()

    async def ready(self) -> None:
        """Wait until it serves."""
        event = await self._event()
        assert event["event"] == "ready", event

    async def _event(self) -> dict[str, str]:
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            line = await self.process.stdout.readline()
        assert line, "it has ended"
        event: dict[str, str] = json.loads(line)
        return event

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status."""
        async with asyncio.timeout(BOUND):
            return await self.process.wait()

    async def kill(self) -> None:
        """At once, with nothing said to anyone."""
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()


async def _start(module: str, arguments: Sequence[str], cache: Path | None, log: IO[str] | None = None) -> Child:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"OCTAVO_CACHE": str(cache)} if cache else {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, env=environ, stdout=asyncio.subprocess.PIPE, stderr=log
    )
    child = Child(process)
    try:
        await child.listening()
    except BaseException:
        await child.kill()
        raise
    return child


async def start_worker(model: Path, *arguments: str, port: int = 0, cache: Path | None = None) -> Child:
    """It listens, and is not ready yet."""
    return await _start("worker.main", ("--model", str(model), "--port", str(port), *arguments), cache)


async def start_router(*arguments: str, cache: Path | None = None, log: IO[str] | None = None) -> Child:
    """It listens, and is not ready yet. `log` takes what it logs."""
    return await _start("router.main", ("--http-port", "0", "--grpc-port", "0", *arguments), cache, log)


@asynccontextmanager
async def workers(model: Path, cache: Path, *each: Sequence[str]) -> AsyncIterator[list[Child]]:
    """One of each list of arguments, ready; killed at the end where they still run."""
    started: list[Child] = []
    try:
        started += await asyncio.gather(*(start_worker(model, *arguments, cache=cache) for arguments in each))
        await asyncio.gather(*(child.ready() for child in started))
        yield started
    finally:
        await asyncio.gather(*(child.kill() for child in started))
