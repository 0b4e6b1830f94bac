"""A child that is kept running: started again, ever more slowly, when it ends without being told to."""

import asyncio
import signal
from collections.abc import Callable
from typing import Literal, Protocol

from shared.supervise.process import Command, Event, Process

FIRST_DELAY = 0.5  # seconds before the first restart; doubles with each one in a row
LONGEST_DELAY = 30.0
STEADY_SECONDS = 60.0  # a run this long ends a row of failures


class Report(Protocol):
    """Who is told of what happens. `name` is a child's."""

    def state(self, text: str) -> None:
        """A step on the way up or down."""

    def notice(self, text: str) -> None:
        """Something that the user should know of."""

    def log(self, name: str, line: str) -> None:
        """A line that a child wrote."""


class StartFailed(Exception):
    """A child ended before it was ever up. `status` is its exit status, negative where a signal killed it."""

    def __init__(self, name: str, status: int, line: str):
        super().__init__(line or f"{name} ended with {outcome(status)} and said nothing")
        self.status = status


def outcome(status: int) -> str:
    """An exit status, for people."""
    if status >= 0:
        return f"status {status}"
    known = {number.value: number.name for number in signal.Signals}
    return known.get(-status, f"signal {-status}")


def delay_before(restart: int) -> float:
    """Seconds to wait before the restart of this number (the first is 0) in a row."""
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(restart, 16)))


class Supervised:
    """Keeps one child running.

    `command` makes each run's command from what the first run said when it listened (None before), so that a restarted child
    comes back at the same address. One that ends before it has said `up` was never any good, and is not started again.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[Event | None], Command],
        report: Report,
        *,
        up: Literal["listening", "ready"] = "ready",
    ):
        self.name = name
        self._up = up
        self._command = command
        self._report = report
        self._process: Process | None = None
        self._failures = 0
        self._stop = asyncio.Event()
        self.listening: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self.ready: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        """Of the run that goes on, if one does."""
        return None if self._process is None else self._process.pid

    def _on_event(self, event: Event) -> None:
        future = {"listening": self.listening, "ready": self.ready}.get(event["event"])
        if future is not None and not future.done():
            future.set_result(event)
        elif event["event"] == "ready":
            self._report.notice(f"{self.name} is ready again")

    async def _run_once(self) -> tuple[int, str]:
        """One run, to its end: its exit status and its last line."""
        said = self.listening.result() if self.listening.done() else None
        process = await Process.start(
            self._command(said), self._on_event, lambda line: self._report.log(self.name, line)
        )
        self._process = process
        if self._stop.is_set():  # told while it was being made
            process.send(signal.SIGTERM)
        try:
            return await process.wait(), process.last_line
        finally:
            process.send(signal.SIGKILL)
            self._process = None

    async def run(self) -> None:
        """Returns once it was told to stop and the child has ended. Raises StartFailed where it was never up."""
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            began = loop.time()
            status, line = await self._run_once()
            if self._stop.is_set():
                return
            if not (self.listening if self._up == "listening" else self.ready).done():
                raise StartFailed(self.name, status, line)
            self._failures = 0 if loop.time() - began >= STEADY_SECONDS else self._failures
            await self._pause(status)

    async def _pause(self, status: int) -> None:
        delay = delay_before(self._failures)
        self._failures += 1
        self._report.notice(f"{self.name} ended with {outcome(status)}; starting it again in {delay:g} s")
        try:
            await asyncio.wait_for(self._stop.wait(), delay)
        except TimeoutError:
            return

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """No run after this one, which gets the signal."""
        self._stop.set()
        if self._process is not None:
            self._process.send(number)
