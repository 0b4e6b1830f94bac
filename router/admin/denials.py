"""Denied calls in the audit log. Strangers make them, so they are bounded: of each kind a line at once, and one that counts what followed.

Whatever is sent, a router process writes at most 2 * KINDS + 1 lines in a span of SPAN_SECONDS, and keeps no more than KINDS kinds in mind.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.tenancy.records import DENIED, AuditRecord
from shared.errors import OctavoError

SPAN_SECONDS = 600.0
KINDS = 16  # (actor, address, reason) of a span that have lines of their own
_MOST = 200  # characters of what was asked

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Denial:
    """A call that was refused: by whom (tenant/key, where a right key lacks the scope; else empty), from where, for what reason (an error's
    code)."""

    actor: str
    origin: str
    reason: str


_OTHERS = Denial(actor="", origin="", reason="denied, of other kinds")


class Denials:
    """Writes them with `note`. `clock` is the wall clock, in Unix seconds."""

    def __init__(
        self,
        note: Callable[[AuditRecord], Awaitable[None]],
        clock: Callable[[], float],
        *,
        span_seconds: float = SPAN_SECONDS,
    ):
        self._note = note
        self._clock = clock
        self._seconds = span_seconds
        self._more: Counter[Denial] = Counter()  # of each kind of this span, beyond the first
        self._span: asyncio.TimerHandle | None = None
        self._writing: set[asyncio.Task[None]] = set()

    def add(self, denial: Denial, asked: str) -> None:
        """One more; `asked` says what it wanted (a method and a path). Returns at once."""
        if self._span is None:
            self._span = asyncio.get_running_loop().call_later(self._seconds, self._end_span)
        if denial in self._more:
            self._more[denial] += 1
        elif len(self._more.keys() - {_OTHERS}) < KINDS:
            self._more[denial] = 0
            self._write(denial, asked[:_MOST], denial.reason)
        else:
            self._more[_OTHERS] += 1

    def _end_span(self) -> None:
        more, self._more, self._span = self._more, Counter(), None
        for denial, count in more.items():
            if count:
                self._write(denial, "", f"{denial.reason}, {count} more within {self._seconds:g} s")

    def _write(self, denial: Denial, subject: str, detail: str) -> None:
        line = AuditRecord(
            time=self._clock(),
            actor=denial.actor,
            action=DENIED,
            subject=subject,
            detail=detail,
            origin=denial.origin,
        )
        task = asyncio.get_running_loop().create_task(self._written(line))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _written(self, line: AuditRecord) -> None:
        try:
            await self._note(line)
        except OctavoError as error:
            _LOG.error("a denied call is not in the audit log: %s", error.message)

    async def flushed(self) -> None:
        """Returns once all lines that were begun are in the log."""
        await asyncio.gather(*self._writing)

    async def aclose(self) -> None:
        """Writes what it has counted."""
        if self._span is not None:
            self._span.cancel()
            self._end_span()
        await self.flushed()
