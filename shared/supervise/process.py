"""One run of one child process: its events (JSON lines on stdout), its log (stderr), its end."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]

LAST_LINES_SECONDS = 1.0  # for what a child said just before its end


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What to run: a module of Python with its arguments. `orphan_seconds`: how long it may live without its supervisor."""

    module: str
    arguments: tuple[str, ...]
    orphan_seconds: float


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of any length, without their ends; the last one need not have one."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


def as_event(line: str) -> Event | None:
    """The event that a line of stdout tells, or None for any other line."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None


class Process:
    """A child that runs, in a session of its own: a terminal's Ctrl-C reaches the supervisor alone, which decides on the order."""

    def __init__(
        self, process: asyncio.subprocess.Process, on_event: Callable[[Event], None], on_log: Callable[[str], None]
    ):
        self._process = process
        self._on_event = on_event
        self._on_log = on_log
        self.last_line = ""

    @classmethod
    async def start(
        cls, command: Command, on_event: Callable[[Event], None], on_log: Callable[[str], None]
    ) -> "Process":
        """Raises OSError where no process can be made."""
        # -P: a folder called `worker` or `router` where the user stands is not ours.
        prefix = (sys.executable, "-P", "-m", "shared.supervise.child", str(command.orphan_seconds), command.module)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *prefix, *command.arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        return cls(process, on_event, on_log)

    @property
    def pid(self) -> int:
        """The operating system's name for it."""
        return self._process.pid

    async def _read_events(self, stream: asyncio.StreamReader) -> None:
        async for line in lines(stream):
            event = as_event(line)
            if event is None:
                self._on_log(line)
            else:
                self._on_event(event)

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        async for line in lines(stream):
            if line.strip():
                self.last_line = line.strip()
            self._on_log(line)

    async def wait(self) -> int:
        """Reads what it says until it ends; its exit status (negative: the signal that killed it). Call it once."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        readers = asyncio.gather(self._read_events(self._process.stdout), self._read_log(self._process.stderr))
        try:
            code = await self._process.wait()
            # A grandchild may hold the pipes open for as long as it likes.
            await asyncio.wait({readers}, timeout=LAST_LINES_SECONDS)
            return code
        finally:
            readers.cancel()

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal; nothing happens to one that has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
