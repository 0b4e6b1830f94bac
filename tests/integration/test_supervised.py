"""Children under supervision: real processes that do what a test tells them."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.supervise.ports import port_of
from shared.supervise import supervised
from shared.supervise.process import Command, Event
from shared.supervise.supervised import StartFailed, Supervised, delay_before
from tests.fakes.report import Told
from tests.fakes.scripted_worker import until

CHILDREN = Path(__file__).parents[1] / "fakes" / "child"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHILDREN))
    monkeypatch.setattr(supervised, "FIRST_DELAY", 0.01)


def command(mode: str) -> Callable[[Event | None], Command]:
    """The command of a child of this mode, which asks for the port that it had before."""

    def make(said: Event | None) -> Command:
        port = 0 if said is None else port_of(said["address"])
        return Command(module="scripted_child", arguments=(mode, str(port)), orphan_seconds=0.2)

    return make


def alive(pid: int) -> bool:
    """Whether a process of this id runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def arguments_of(pid: int) -> list[str]:
    """What a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


async def bounded(awaitable: Any) -> Any:
    async with asyncio.timeout(20):
        return await awaitable


async def test_a_killed_child_comes_back_at_the_same_address_and_that_is_told() -> None:
    told = Told()
    child = Supervised("worker", command("serves"), told)
    run = asyncio.create_task(child.run())
    said = await bounded(child.listening)
    await bounded(child.ready)
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: "worker is ready again" in told.notices, "the restart")
    assert child.pid not in (None, first)
    assert any("ended with SIGKILL; starting it again" in notice for notice in told.notices)
    assert arguments_of(child.pid)[-1] == str(port_of(said["address"]))
    child.stop()
    await bounded(run)


async def test_a_child_that_is_told_to_stop_drains_and_is_not_started_again() -> None:
    told = Told()
    child = Supervised("worker", command("serves"), told)
    run = asyncio.create_task(child.run())
    await bounded(child.ready)
    child.stop()
    await bounded(run)
    assert ("worker", "drained") in told.lines
    assert child.pid is None
    assert told.notices == []


async def test_a_child_that_was_never_ready_fails_with_its_own_last_line_and_status() -> None:
    child = Supervised("worker", command("fails"), Told())
    with pytest.raises(StartFailed, match=r"^no such model: nothing$") as failure:
        await bounded(child.run())
    assert failure.value.status == 3


async def test_lines_of_any_length_and_lines_that_are_no_events_go_to_the_log() -> None:
    told = Told()
    child = Supervised("worker", command("talkative"), told)
    run = asyncio.create_task(child.run())
    await bounded(child.ready)
    await until(lambda: len(told.lines) >= 2, "the log")
    assert {len(line) for _, line in told.lines} == {1 << 20, len("not an event")}
    child.stop()
    await bounded(run)


@pytest.mark.parametrize("mode", ["serves", "stubborn"])
async def test_a_child_whose_supervisor_was_killed_ends_by_itself(mode: str) -> None:
    script = (
        "import asyncio, sys\n"
        "from shared.supervise.process import Command, Process\n"
        "async def main():\n"
        f"    command = Command(module='scripted_child', arguments=({mode!r}, '0'), orphan_seconds=0.2)\n"
        "    child = await Process.start(command, lambda event: print(child.pid, flush=True), lambda line: None)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=pipe)
    assert supervisor.stdout is not None
    pid = int(await bounded(supervisor.stdout.readline()))
    assert alive(pid)
    supervisor.kill()
    await bounded(supervisor.wait())
    await until(lambda: not alive(pid), "the child's end")


def test_restarts_in_a_row_wait_ever_longer_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_DELAY", 0.5)
    assert [delay_before(restart) for restart in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert delay_before(10_000) == 30


async def test_a_child_that_is_told_to_stop_while_it_is_being_made_ends_at_once() -> None:
    child = Supervised("worker", command("serves"), Told())
    run = asyncio.create_task(child.run())
    await asyncio.sleep(0)  # the run has begun, and no process is known yet
    assert child.pid is None
    child.stop()
    await bounded(run)
    assert not child.ready.done()
