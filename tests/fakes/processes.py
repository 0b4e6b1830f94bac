"""`octavo-router --processes N` as real processes: what it tells, and who of it lives."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import ROOT
from tests.fakes.scripted_worker import ScriptedWorker, until

BOUND = 60.0  # seconds
FREE = ("--http-port", "0", "--grpc-port", "0")


@dataclass(kw_only=True)
class Processes:
    """A router of several processes. `events` and `log` grow as it tells them."""

    process: asyncio.subprocess.Process
    events: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    async def told(self, event: str, text: str = "") -> dict[str, Any]:
        """The first such event whose text holds `text`, once it comes."""

        def found() -> dict[str, Any] | None:
            come = [one for one in self.events if one["event"] == event and text in str(one.get("text", ""))]
            assert come or self.process.returncode is None, f"it ended: {self.events} {self.log[-20:]}"
            return come[0] if come else None

        try:
            return await until(found, f"{event} {text!r}")  # type: ignore[no-any-return]
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.events} {self.log[-20:]}") from error

    async def ended(self) -> int:
        """Its exit status."""
        async with asyncio.timeout(BOUND):
            return await self.process.wait()

    def client(self, address: str) -> httpx.AsyncClient:
        """One that takes a new connection for each request, and so meets all processes."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=f"http://{address}", timeout=BOUND, limits=limits)


async def _gather(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    async for line in stream:
        take(line.decode())


@asynccontextmanager
async def processes(
    tmp: Path, *flags: str, count: int = 2, store: Path | None = None, **environ: str
) -> AsyncIterator[Processes]:
    """It is started; what it tells is awaited by the test. Whatever is left of it at the end is killed."""
    env = {**os.environ, "OCTAVO_CACHE": str(tmp), "PYTHONPATH": str(ROOT), **environ}
    stored = () if store is None else ("--store", str(store))
    command = (sys.executable, "-m", "router.main", "--processes", str(count), *FREE, *stored, *flags)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe)
    running = Processes(process=process)
    assert process.stdout is not None
    assert process.stderr is not None
    readers = asyncio.gather(
        _gather(process.stdout, lambda line: running.events.append(json.loads(line))),
        _gather(process.stderr, running.log.append),
    )
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()  # its processes drain by themselves
        await process.wait()
        await readers


@asynccontextmanager
async def beating(worker: ScriptedWorker) -> AsyncIterator[None]:
    """The worker reports to every router as real ones do, however long the test takes."""

    async def beat() -> None:
        while True:
            for conversation in worker.conversations:
                if not conversation.over:
                    conversation.load()
            await asyncio.sleep(0.25)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
