"""Where workers are, beside a list that stays: a name of several addresses that is looked up again, a file that is read again.

A source tells all of its addresses whenever they have changed. What cannot be looked up or read changes nothing: workers that are there
stay, and the log says what is wrong, once.
"""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from router.fleet.targets import SCHEME, BadFile, Targets, check_target, joined, parse, split_target

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
Tell = Callable[[Targets], None]

MOST_BYTES = 1 << 20  # of a file of workers

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds between two looks."""

    resolve: float = 3.0
    read: float = 0.25


class Source(Protocol):
    """Some of the workers' addresses."""

    async def follow(self, tell: Tell) -> None:
        """Tell them, now and whenever they change, until cancelled."""


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Every address of `host`. Raises OSError where there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """`fixed` are host:port, for ever; `sources` tell of more."""

    fixed: Targets = ()
    sources: tuple[Source, ...] = ()


def where(
    targets: Sequence[str], file: Path | None = None, *, pace: Pace | None = None, resolve: Resolver = system_resolver
) -> Where:
    """By a router's configuration. Raises ValueError where `targets` has what is no address."""
    pace = pace or Pace()
    for target in targets:
        check_target(target)
    names = [target.removeprefix(SCHEME) for target in targets if target.startswith(SCHEME)]
    followed: list[Source] = [Named(*split_target(name), pace.resolve, resolve) for name in names]
    if file is not None:
        followed.append(Filed(file, pace.read))
    fixed = (target for target in targets if not target.startswith(SCHEME))
    return Where(fixed=tuple(dict.fromkeys(fixed)), sources=tuple(followed))


class Named:
    """All addresses of a name, as those of a headless service. One that cannot be looked up now keeps what it had."""

    def __init__(self, host: str, port: int, every: float, resolve: Resolver):
        self._host = host
        self._port = port
        self._every = every
        self._resolve = resolve
        self._wrong = ""

    async def follow(self, tell: Tell) -> None:
        """See Source."""
        known: Targets | None = None
        while True:
            found = await self._look()
            if found is not None and found != known:
                tell(found)
                known = found
            await asyncio.sleep(self._every)

    async def _look(self) -> Targets | None:
        try:
            addresses = await self._resolve(self._host, self._port)
            found = tuple(sorted({joined(address, self._port) for address in addresses}))
        except (OSError, ValueError) as error:
            self._complain(str(error))
            return None
        if not found:
            self._complain("no addresses")
            return None
        self._wrong = ""
        return found

    def _complain(self, why: str) -> None:
        if why != self._wrong:
            log.warning("the workers of %s:%d cannot be looked up: %s", self._host, self._port, why)
        self._wrong = why


class Filed:
    """A file of addresses. A change counts once two looks have seen it, so that half of a file being written is not taken for all; remarks
    may change with each look, as a time does that is written there again and again."""

    def __init__(self, path: Path, every: float):
        self._path = path
        self._every = every
        self._wrong = ""

    async def follow(self, tell: Tell) -> None:
        """See Source."""
        known: Targets | None = None
        seen: tuple[str | None, Targets | None] = (None, None)  # at the last look
        while True:
            text = await asyncio.to_thread(self._read)
            found = self._parsed(text) if text is not None else None
            same = text == seen[0] or (found and found == seen[1])
            if found is not None and found != known and (same or known is None):
                tell(found)
                known = found
            seen = (text, found)
            await asyncio.sleep(self._every)

    def _read(self) -> str | None:
        try:
            return read_small(self._path)
        except (OSError, ValueError) as error:
            self._complain(str(error))
            return None

    def _parsed(self, text: str) -> Targets | None:
        try:
            found = parse(text)
        except BadFile as error:
            self._complain(str(error))
            return None
        self._wrong = ""
        return found

    def _complain(self, why: str) -> None:
        if why != self._wrong:
            log.warning("the workers in %s stay as they were: %s", self._path, why)
        self._wrong = why


def read_small(path: Path) -> str:
    """The text of a file that has at most MOST_BYTES. Whatever is there, it waits for nobody: a pipe would hold a thread, and with it the
    end of the process, until somebody writes. Raises OSError, or ValueError for what is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is over {MOST_BYTES} bytes long")
    return data.decode()
