"""The processes of one router, as each of them sees the others: whether all are up, and what their metrics are.

They meet in a directory that their supervisor made for them alone. Each listens there on a socket of its own, N.sock: one line is asked
("metrics" or "tenants"), one JSON document is answered. The file `up` is there once all have been ready.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from router.exposition import Collector, Exposition

ANSWER_SECONDS = 1.0  # a process that takes longer is left out of this scrape
UP = "up"
LABEL = "process"

_MOST = 64 << 20  # bytes of an answer
_LOG = logging.getLogger(__name__)

Families = list[list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One process of a router: its number, from 1, and where all meet."""

    number: int
    directory: Path

    @property
    def socket(self) -> Path:
        """Where it answers the others."""
        return self.directory / f"{self.number}.sock"

    def all_up(self) -> bool:
        """Whether every process has been ready once."""
        return (self.directory / UP).exists()


def told(collector: Collector, number: int) -> Families:
    """Families as JSON holds them, each sample with its process."""
    label = {LABEL: str(number)}
    return [
        [family.name, family.documentation, family.type, family.unit, [[s.name, {**s.labels, **label}, s.value] for s in family.samples]]
        for family in collector.collect()
    ]  # fmt: skip


class Merged:
    """Families of several processes, each family once."""

    def __init__(self, several: Sequence[Families]):
        self._families: dict[str, Metric] = {}
        for families in several:
            for name, documentation, kind, unit, samples in families:
                family = self._families.setdefault(name, Metric(name, documentation, kind, unit))
                for sample in samples:
                    family.add_sample(*sample)

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        return self._families.values()


class Siblings:
    """Implements Exposition over all processes. `own` is this one's."""

    def __init__(self, member: Member, own: Exposition):
        self._member = member
        self._own = own

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answers the others inside the block."""
        with contextlib.suppress(FileNotFoundError):
            self._member.socket.unlink()  # of a process of this number that was killed
        server = await asyncio.start_unix_server(self._answer, self._member.socket)
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readline()
            shown = await self._own.shown(asked == b"tenants\n")
            writer.write(json.dumps(told(shown, self._member.number)).encode())
            await writer.drain()
        except OSError as error:
            _LOG.debug("a process left before its answer: %s", error)
        finally:
            writer.close()

    async def shown(self, tenants: bool) -> Collector:
        """See Exposition. A process that does not answer is missing, as its metrics are when it is down."""
        others = sorted(path for path in self._member.directory.glob("*.sock") if path != self._member.socket)
        answers = await asyncio.gather(*(self._ask(path, tenants) for path in others))
        own = told(await self._own.shown(tenants), self._member.number)
        return Merged([own, *(answer for answer in answers if answer is not None)])

    async def _ask(self, path: Path, tenants: bool) -> Families | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await _asked(path, b"tenants\n" if tenants else b"metrics\n")
        except (OSError, TimeoutError, ValueError) as error:
            _LOG.warning("the metrics of %s are missing: %r", path.name, error)
            return None


async def _asked(path: Path, line: bytes) -> Families:
    reader, writer = await asyncio.open_unix_connection(path, limit=_MOST)
    try:
        writer.write(line)
        families: Families = json.loads(await reader.read(_MOST))
        return families
    finally:
        writer.close()
