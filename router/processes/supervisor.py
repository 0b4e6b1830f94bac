"""`octavo-router --processes N`: N routers on the same ports, each a process of its own, kept running by this one, which serves nothing.

Each listens by itself (SO_REUSEPORT), and the kernel shares out new connections among those that do. This process holds the ports with
sockets that never listen, so that they stay the router's while its processes come and go. It tells on stdout what a router alone tells:
"listening" (with the processes' ids) once all listen, "ready" once all have been ready, and a "notice" for each end and each return.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from router.config import RouterConfig
from router.edge.ports import joined, reserve, split
from router.processes.siblings import UP
from shared.process import Stop, tell
from shared.supervise.process import Command, Event
from shared.supervise.supervised import StartFailed, Supervised

_LOG = logging.getLogger("octavo.router")

SPARE_SECONDS = 5.0  # beyond a process's own drain, before it is killed


class _Teller:
    """Implements shared.supervise.supervised.Report: events on stdout, the processes' own lines on stderr."""

    def state(self, text: str) -> None:
        """See Report."""
        tell(event="state", text=text)

    def notice(self, text: str) -> None:
        """See Report. Whoever reads only the log learns of it too."""
        tell(event="notice", text=text)
        _LOG.warning("%s", text)

    def log(self, name: str, line: str) -> None:
        """See Report. A process's log names what it needs to."""
        del name
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _reserved(settings: RouterConfig, stack: ExitStack) -> Mapping[str, str]:
    """The flags that tell each process where to listen. Raises OSError where a port is taken."""

    def port(host: str, wanted: int, purpose: str) -> str:
        held: socket.socket = stack.enter_context(reserve(host, wanted, purpose))
        return str(held.getsockname()[1])

    flags = {
        "--http-port": port(settings.host, settings.http_port, "HTTP"),
        "--grpc-port": port(settings.host, settings.grpc_port, "gRPC"),
    }
    for name, address in (("admin", settings.admin_listen), ("admin-grpc", settings.admin_grpc_listen)):
        if address is not None:
            host, wanted = split(address)
            flags[f"--{name}-listen"] = joined(host, int(port(host, wanted, "operators")))
    return flags


async def _first(*futures: "asyncio.Future[Any]", timeout: float | None = None) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class _Group:
    """All processes of the router."""

    def __init__(self, settings: RouterConfig, arguments: Sequence[str], flags: Mapping[str, str], directory: Path):
        self._orphan_seconds = settings.drain_seconds + SPARE_SECONDS
        self._arguments = (*arguments, *(part for flag in flags.items() for part in flag))
        self._directory = directory
        self._teller = _Teller()
        self._runs: dict[Supervised, asyncio.Task[None]] = {}
        self._count = settings.processes

    def _command(self, number: int) -> Command:
        return Command(
            module="router.processes.member",
            arguments=(str(number), str(self._directory), *self._arguments),
            orphan_seconds=self._orphan_seconds,
        )

    def _start(self, number: int) -> Supervised:
        def command(_: Event | None) -> Command:
            return self._command(number)

        process = Supervised(f"process {number}", command, self._teller, up="listening")
        self._runs[process] = asyncio.create_task(process.run())
        return process

    async def _all(self, said: "Sequence[asyncio.Future[Event]]") -> None:
        """Returns once all have been said. Raises StartFailed where a process ends that never listened."""
        while waiting := {future for future in said if not future.done()}:
            await _first(*waiting, *self._runs.values())
            self.check()

    def check(self) -> None:
        """Raises what ended the watch over a process."""
        for run in self._runs.values():
            if run.done():
                run.result()

    async def run(self) -> None:
        """Starts all, the first alone, so that what is wrong with all of them is said once. Returns only by raising."""
        first = self._start(1)
        await self._all([first.listening])
        members = [first, *(self._start(number) for number in range(2, self._count + 1))]
        await self._all([member.listening for member in members])
        tell(**{**first.listening.result(), "pids": [member.pid for member in members]})
        await self._all([member.ready for member in members])
        (self._directory / UP).touch()
        tell(event="ready")
        await _first(*self._runs.values())
        self.check()

    async def stop(self, now: asyncio.Event) -> None:
        """Drains all; ends them at once as soon as `now` is set; kills what is left after that, or after the drain's time."""
        for process in self._runs:
            process.stop()
        ended = asyncio.gather(*self._runs.values(), return_exceptions=True)
        hurry = asyncio.create_task(now.wait())
        await _first(ended, hurry, timeout=self._orphan_seconds)
        if hurry.done():
            for process in self._runs:
                process.stop()
            await _first(ended, timeout=SPARE_SECONDS)
        hurry.cancel()
        if not ended.done():
            for process in self._runs:
                process.stop(signal.SIGKILL)
        await ended


@asynccontextmanager
async def _group(settings: RouterConfig, arguments: Sequence[str], stop: Stop) -> AsyncIterator[_Group]:
    with ExitStack() as stack:
        flags = _reserved(settings, stack)
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="octavo-router-")))
        group = _Group(settings, arguments, flags, directory)
        try:
            yield group
        finally:
            await group.stop(stop.now)


async def supervise(settings: RouterConfig, arguments: Sequence[str]) -> int:
    """Runs the processes until told to stop; the exit status. `arguments` are the command's own. Raises OSError where a port is taken."""
    stop = Stop()
    stop.install()
    async with _group(settings, arguments, stop) as group:
        running, told = asyncio.create_task(group.run()), asyncio.create_task(stop.drain.wait())
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        running.cancel()
        try:
            if running.done():
                running.result()
        except StartFailed as failed:
            return failed.status if failed.status > 0 else 1
    return 1 if stop.now.is_set() else 0
