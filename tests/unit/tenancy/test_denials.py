"""Denied calls in the audit log: however many there are, its lines are few."""

import asyncio

from router.admin.denials import KINDS, Denial, Denials
from router.tenancy.records import DENIED, AuditRecord
from shared.errors import Unavailable
from tests.fakes.clock import FakeClock


def denial(number: int = 0) -> Denial:
    return Denial(actor="", origin=f"10.0.0.{number}", reason="invalid_api_key")


async def test_of_each_kind_the_first_is_written_at_once_and_the_others_are_counted_at_the_spans_end() -> None:
    lines: list[AuditRecord] = []
    ended = asyncio.Event()

    async def note(line: AuditRecord) -> None:
        lines.append(line)
        if "more within" in line.detail:
            ended.set()

    denials = Denials(note, FakeClock(), span_seconds=0.2)
    for _ in range(1_000):
        denials.add(denial(), "GET '/tenants'")
    await denials.flushed()
    assert [(line.action, line.subject, line.detail) for line in lines] == [
        (DENIED, "GET '/tenants'", "invalid_api_key")
    ]
    async with asyncio.timeout(20):
        await ended.wait()
    assert [line.detail for line in lines[1:]] == ["invalid_api_key, 999 more within 0.2 s"]
    denials.add(denial(), "GET '/tenants'")
    await denials.aclose()
    assert [line.detail for line in lines[2:]] == ["invalid_api_key"], "a new span begins with a line"


async def test_a_stranger_with_a_thousand_addresses_makes_few_lines() -> None:
    lines: list[AuditRecord] = []

    async def note(line: AuditRecord) -> None:
        lines.append(line)

    denials = Denials(note, FakeClock())
    for _ in range(2):
        for number in range(1_000):
            denials.add(denial(number), "x" * 1_000_000)
    await denials.aclose()
    assert len(lines) == 2 * KINDS + 1
    assert max(len(line.subject) for line in lines) <= 200
    (others,) = [line for line in lines if not line.origin]
    assert others.detail == f"denied, of other kinds, {2 * (1_000 - KINDS)} more within 600 s"


async def test_a_store_that_cannot_be_reached_stops_no_call() -> None:
    async def note(line: AuditRecord) -> None:
        raise Unavailable("the store of tenants cannot be reached now")

    denials = Denials(note, FakeClock())
    denials.add(denial(), "GET '/tenants'")
    await denials.aclose()
