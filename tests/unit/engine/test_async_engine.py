"""The engine's thread: what goes in comes out on the loop, in order; it idles without turning; its end is never silent."""

import asyncio
import threading

import pytest

from shared.types import AbortReason
from tests.fakes.clock import FakeClock
from tests.fakes.engine import token_request
from tests.fakes.scripted_worker import until
from tests.unit.engine.test_engine import engine
from worker.engine import AsyncEngine, Report


class Listener:
    """Keeps all that it hears, and where it hears it."""

    def __init__(self):
        self.reports: list[Report] = []
        self.deaths: list[BaseException] = []
        self.threads: set[int] = set()

    def on_report(self, report: Report) -> None:
        self.reports.append(report)
        self.threads.add(threading.get_ident())

    def on_death(self, error: BaseException) -> None:
        self.deaths.append(error)


async def started(depth: int = 0, clock: FakeClock | None = None, check: bool = True):
    inner, gate = engine(depth, clock)
    it, listener = AsyncEngine(inner, clock=clock or FakeClock(), check=check), Listener()
    it.start(listener)
    return it, gate, listener, inner


async def test_reports_come_on_the_loops_thread_with_acks_and_tokens():
    it, _, listener, _ = await started()
    it.submit(1, token_request(5, 1))
    await until(lambda: not it.busy, "the end")
    assert listener.threads == {threading.get_ident()}
    assert [ack for report in listener.reports for ack in report.acks] == [(1, 5)]
    deltas = [delta for report in listener.reports for _, delta in report.output.deltas]
    assert sum(len(delta.tokens) for delta in deltas) == 8
    assert len([end for report in listener.reports for end in report.output.finished]) == 1
    assert await it.stop(10)


async def test_without_work_the_thread_makes_one_turn_a_command_and_no_other():
    it, _, listener, _ = await started()
    for number in range(1, 51):
        it.abort(1, [1], AbortReason.CLIENT)
        await until(lambda: not it.busy, "the command")
        assert len(listener.reports) == number
    assert await it.stop(10)


async def test_it_is_busy_from_the_command_on():
    it, gate, _, _ = await started()
    gate.hold()
    assert not it.busy
    it.submit(1, token_request(1, 1))
    assert it.busy
    gate.open()
    await until(lambda: not it.busy, "the end")
    assert await it.stop(10)


async def test_the_age_of_a_step_counts_from_when_there_was_work():
    clock = FakeClock()
    it, gate, _, _ = await started(clock=clock)
    clock.advance(100)
    gate.hold()
    it.submit(1, token_request(1, 1))
    clock.advance(2)
    assert it.step_age() == 2
    await until(lambda: gate.waiting, "a step")
    clock.advance(1)
    assert it.step_age() == 3
    gate.open()
    await until(lambda: not it.busy, "the end")
    assert await it.stop(10)


async def test_a_snapshot_is_reported_with_just_the_changes_that_it_holds():
    it, gate, listener, _ = await started()
    gate.hold()
    it.submit(1, token_request(1, 1, length=64))
    await until(lambda: gate.waiting, "a step")
    for seq in range(2, 5):
        it.submit(1, token_request(seq, seq, length=64))
        it.request_snapshot(seq)
    gate.open()
    await until(lambda: not it.busy, "the end")
    view: set[bytes] = set()
    seen = []
    for report in listener.reports:
        assert not view & set(report.output.kv.added)
        view = (view | set(report.output.kv.added)) - set(report.output.kv.removed)
        for stream, hashes in report.snapshots:
            seen.append(stream)
            assert set(hashes) == view
    assert seen == [2, 3, 4]
    assert await it.stop(10)


async def test_a_flush_tells_its_number():
    it, _, _, _ = await started()
    it.submit(1, token_request(1, 1, length=64))
    await until(lambda: not it.busy, "the end")
    assert await it.flush_cache() == 4
    assert await it.flush_cache() == 0
    assert await it.stop(10)


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, SystemExit, KeyboardInterrupt])
async def test_whatever_ends_the_thread_is_told_and_nothing_waits_for_ever(kind, caplog):
    it, _, listener, inner = await started()

    within, go_on = threading.Event(), threading.Event()

    def broken():
        within.set()
        assert go_on.wait(10)
        raise kind("gone")

    inner.step = broken
    it.submit(1, token_request(1, 1))
    await until(within.is_set, "the step")
    flush = asyncio.ensure_future(it.flush_cache())
    await until(lambda: it._sent == 2, "the flush")
    go_on.set()
    await until(lambda: listener.deaths, "the death")
    assert isinstance(it.died, kind)
    with pytest.raises(RuntimeError, match="died"):
        await flush
    with pytest.raises(RuntimeError, match="died"):
        await it.flush_cache()
    it.submit(1, token_request(2, 2))  # into nothing, and without harm
    assert "the engine died" in caplog.text
    assert await it.stop(10)


async def test_a_broken_invariant_ends_the_thread_when_it_is_idle():
    it, _, listener, inner = await started()

    def broken():
        raise AssertionError("a block is lost")

    inner.check_integrity = broken
    it.submit(1, token_request(1, 1))
    await until(lambda: listener.deaths, "the death")
    assert str(it.died) == "a block is lost"


async def test_it_stops_with_work_left_and_says_when_it_could_not():
    it, gate, listener, _ = await started()
    gate.hold()
    it.submit(1, token_request(1, 1, max_tokens=100))
    await until(lambda: gate.waiting, "a step")
    assert not await it.stop(0.01)
    gate.open()
    await until(lambda: not it._thread.is_alive(), "the thread's end")
    assert listener.deaths == []
