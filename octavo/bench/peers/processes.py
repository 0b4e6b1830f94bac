"""Programs of others (and our own), bounded in time: started in a session of their own, ended with all that they started."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo.bench.peers import proc

_POLL_S = 0.05
_WATCH_S = 1.0  # between two looks at the memory of a program's processes
_GRACE_S = 30.0  # from SIGTERM to SIGKILL
_TAIL = 400  # characters of what a failed program said last


class ProgramFailed(Exception):
    """A program did not start, did not end in time, ended badly, or did not say what it should. The message is for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What to run: `env` on top of this process's environment."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A program that ended well. `cpu_s` is its own and that of its ended children; `peak_rss` the sum of its processes' largest sizes."""

    output: str
    seconds: float
    cpu_s: float
    peak_rss: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A program that runs; what it says goes to `output` (stdout) and `log` (stderr)."""

    pid: int
    output: Path
    log: Path

    def said(self) -> str:
        """Its stdout so far."""
        return self.output.read_text(errors="replace")

    def last_words(self) -> str:
        """The end of its stderr, or of its stdout where it has none."""
        return (self.log.read_text(errors="replace").strip() or self.said().strip())[-_TAIL:]


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _reaped(pid: int) -> tuple[int, float, int] | None:
    """Exit status, CPU seconds and the largest resident set of a child that has ended; None while it runs."""
    ended, status, usage = os.wait4(pid, os.WNOHANG)
    if not ended:
        return None
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _wait(pid: int, seconds: float, watch: Callable[[], None] = lambda: None) -> tuple[int, float, int] | None:
    """What `_reaped` tells, or None after `seconds`; calls `watch` now and then meanwhile."""
    limit, next_watch = time.monotonic() + seconds, 0.0
    while (reaped := _reaped(pid)) is None and (now := time.monotonic()) < limit:
        if now >= next_watch:
            watch()
            next_watch = now + _WATCH_S
        time.sleep(_POLL_S)
    return reaped


def _end(running: Running, grace: float) -> None:
    """SIGTERM to the program, then SIGKILL to its whole session: a grandchild may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    reaped = _wait(running.pid, grace)
    _signal(running.pid, signal.SIGKILL)
    if reaped is None:
        _wait(running.pid, grace)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """SIGTERM, which ends a process without a word to what it started in other sessions, ends the block as an exception does."""
    if threading.current_thread() is not threading.main_thread():  # no other may say what signals do
        yield
        return
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _started(program: Program) -> Iterator[Running]:
    """For as long as the block lasts the files are there; the program is the block's to end, on SIGTERM as well."""
    with _leaving_on_sigterm(), TemporaryDirectory(prefix="octavo-bench-") as folder:
        output, log = Path(folder) / "stdout", Path(folder) / "stderr"
        with output.open("wb") as out, log.open("wb") as err:
            try:
                process = subprocess.Popen(
                    program.command,
                    env={**os.environ, **program.env},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProgramFailed(f"{program.command[0]}: {error.strerror}") from error
        process.returncode = 0  # it is waited for here, by wait4, and not by Popen
        yield Running(pid=process.pid, output=output, log=log)


def run(program: Program, timeout: float) -> Ended:
    """Runs it to its end. Raises ProgramFailed where that takes longer than `timeout` seconds, or its status is not 0."""
    with _started(program) as running:
        began, done = time.monotonic(), None
        peaks: dict[int, int] = {}  # a child that nobody waits for is not in its parent's usage
        try:
            done = _wait(running.pid, timeout, lambda: peaks.update(proc.peaks(proc.tree(running.pid))))
        finally:
            if done is None:
                _end(running, _GRACE_S)
            _signal(running.pid, signal.SIGKILL)
        if done is None:
            raise ProgramFailed(f"not done after {timeout:.0f} s; it said last: {running.last_words()}")
        status, cpu_s, peak = done
        if status:
            raise ProgramFailed(f"ended with status {status}: {running.last_words()}")
        peak_rss = max(peak, sum(peaks.values()))
        return Ended(output=running.said(), seconds=time.monotonic() - began, cpu_s=cpu_s, peak_rss=peak_rss)


@contextmanager
def serving(program: Program, is_ready: Callable[[Running], bool], timeout: float) -> Iterator[Running]:
    """A server for as long as the block lasts, which begins when it is ready. Raises ProgramFailed where it is not in time."""
    with _started(program) as running:
        reaped = None
        try:
            limit = time.monotonic() + timeout
            while not is_ready(running):
                reaped = _reaped(running.pid)
                if reaped is not None:
                    raise ProgramFailed(f"ended with status {reaped[0]}: {running.last_words()}")
                if time.monotonic() > limit:
                    raise ProgramFailed(f"not ready after {timeout:.0f} s; it said last: {running.last_words()}")
                time.sleep(_POLL_S)
            yield running
        finally:
            if reaped is None:
                _end(running, _GRACE_S)
            _signal(running.pid, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command_line(*parts: str | Path | int) -> tuple[str, ...]:
    """A command of strings."""
    return tuple(str(part) for part in parts)
