"""The engine's thread, and the only place where threads meet: one queue in, one `call_soon_threadsafe` a turn out.

A turn takes the commands that wait, makes one step, and tells the loop. Without work the thread blocks on the queue.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from shared.types import AbortReason, RejectCode, TokenRequest
from worker.engine.engine import Engine
from worker.engine.report import Draft, Report
from worker.events import EngineStats

_LOG = logging.getLogger("octavo.engine")

COMMANDS = 256  # a turn, so that a flood of them does not hold up a step
STALL_SECONDS = (
    0.05  # between two looks at work of which nothing can be computed: only time (a deadline) can change that
)

_Command = Callable[[Engine, Draft], None]


def _settle(answer: "asyncio.Future[int]", value: int) -> None:
    if not answer.done():  # its caller may have left
        answer.set_result(value)


class Sink(Protocol):
    """Hears of the engine, on the event loop."""

    def on_report(self, report: Report) -> None:
        """A turn is over."""

    def on_death(self, error: BaseException) -> None:
        """The thread has ended and was not told to. Nothing follows."""


class AsyncEngine:
    """The loop's side. `died` holds what ended the thread, if anything did. Times are those of `clock`, in seconds.

    With `check` the engine's invariants are checked whenever it runs out of work; a broken one ends the thread.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic, check: bool = False):
        self.died: BaseException | None = None
        self.stats: EngineStats = engine.stats()
        self._engine = engine
        self._clock = clock
        self._check = check
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._sent = 0
        self._taken = 0  # as the last report said
        self._taking = 0  # the thread's own, as is:
        self._stopping = False
        self._has_work = False
        self._busy_since = clock()
        self._flushes: set[asyncio.Future[int]] = set()

    # ---- on the event loop

    def start(self, sink: Sink) -> None:
        """Begin. Everything is reported to `sink` on the running loop."""
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether there is work, or a command that has not been taken."""
        return self._has_work or self._sent > self._taken

    def step_age(self) -> float:
        """Seconds since the last step retired, or since there is work if that is later."""
        return max(0.0, self._clock() - max(self.stats.last_step_at, self._busy_since))

    def predicted_step(self) -> float:
        """Seconds that the step which runs now was expected to take, or the last one where none runs.

        At depth 0 a step runs inside the thread's turn, so that no report could tell of it in time: this one number is read across.
        """
        return self._engine.predicted_s

    def submit(self, stream: int, request: TokenRequest) -> None:
        """Queue a request. The report that has its ack covers it in `stats`."""

        def command(engine: Engine, draft: Draft) -> None:
            draft.add(engine.submit(stream, request))
            draft.acks.append((stream, request.seq))

        self._send(command)

    def abort(self, stream: int, handles: Sequence[int], reason: AbortReason) -> None:
        """End choices, in whatever phase; each one's end is reported."""
        self._send(lambda engine, draft: draft.add(engine.abort(stream, handles, reason)))

    def drop_stream(self, stream: int) -> None:
        """End everything of a stream; nothing of it is reported."""
        self._send(lambda engine, draft: draft.add(engine.drop_stream(stream)))

    def request_snapshot(self, stream: int) -> None:
        """Have a report carry every published hash. It comes in order with the changes, which a future's result would not."""

        def command(engine: Engine, draft: Draft) -> None:
            hashes, output = engine.snapshot()
            draft.add(output)
            draft.snapshots.append((stream, hashes))

        self._send(command)

    def adapter_loaded(self, slot: int) -> None:
        """A device slot holds what was ordered."""
        self._send(lambda engine, draft: draft.add(engine.adapter_loaded(slot)))

    def adapter_failed(self, slot: int, code: RejectCode, message: str) -> None:
        """What was ordered for a device slot cannot be had; those who wait for it are told."""
        self._send(lambda engine, draft: draft.add(engine.adapter_failed(slot, code, message)))

    def forget_adapter(self, digest: bytes) -> None:
        """No name means it any more; its slot is cleared when nothing uses it."""
        self._send(lambda engine, draft: draft.add(engine.forget_adapter(digest)))

    def remember_adapter(self, digest: bytes) -> None:
        """A name means it again."""
        self._send(lambda engine, _: engine.remember_adapter(digest))

    def pin_adapter(self, digest: bytes, pinned: bool) -> None:
        """Keep its device slot from others, or not any more."""
        self._send(lambda engine, _: engine.pin_adapter(digest, pinned))

    async def flush_cache(self) -> int:
        """Forget cached blocks that nothing uses; their number. Raises RuntimeError where the engine is dead or dies."""
        if self.died is not None:
            raise RuntimeError(f"the engine died: {self.died}")
        answer: asyncio.Future[int] = self._loop.create_future()
        self._flushes.add(answer)

        def command(engine: Engine, draft: Draft) -> None:
            blocks, output = engine.flush_cache()
            draft.add(output)
            self._post(lambda: _settle(answer, blocks))

        self._send(command)
        try:
            return await answer
        finally:
            self._flushes.discard(answer)

    async def stop(self, timeout: float) -> bool:
        """End the thread after its present turn; whether it ended within `timeout` seconds."""
        self._commands.put(self._end)
        try:
            await asyncio.wait_for(self._over.wait(), timeout)
        except TimeoutError:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _send(self, command: _Command) -> None:
        if self.died is not None:
            return
        if not self.busy:
            self._busy_since = self._clock()
        self._sent += 1
        self._commands.put(command)

    def _on_report(self, report: Report) -> None:
        self.stats, self._has_work, self._taken = report.stats, report.has_work, report.taken
        self._sink.on_report(report)

    def _on_end(self, error: BaseException | None) -> None:
        self._over.set()
        if error is None:
            return
        self.died = error
        for answer in self._flushes:
            if not answer.done():
                answer.set_exception(RuntimeError(f"the engine died: {error}"))
        self._sink.on_death(error)

    # ---- on the engine's thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._turn():
                pass
        except BaseException as caught:  # noqa: BLE001 - whatever ends the thread is told, or streams would hang for ever
            _LOG.critical("the engine died", exc_info=True)
            error = caught
        self._post(lambda: self._on_end(error))

    def _turn(self) -> bool:
        """Whether another follows."""
        draft = Draft()
        self._take_commands(draft)
        if self._stopping:
            return False
        if not draft.snapshots and self._engine.has_work:
            draft.add(self._engine.step())
            draft.step = self._engine.last_step
        has_work = self._engine.has_work
        if self._check and not has_work:
            self._engine.check_integrity()
        report = draft.report(self._engine.stats(), has_work=has_work, taken=self._taking)
        self._post(lambda: self._on_report(report))
        return True

    def _take_commands(self, draft: Draft) -> None:
        """A snapshot ends the turn, so that its report tells just the changes that it holds."""
        most = self._taking + COMMANDS
        command = self._first()
        while command is not None:
            self._taking += 1
            command(self._engine, draft)
            done = self._taking == most or draft.snapshots or self._stopping
            command = None if done else self._waiting()

    def _first(self) -> _Command | None:
        """Waits where there is nothing else to do."""
        if not self._engine.has_work:
            return self._commands.get()
        return self._waiting(STALL_SECONDS) if self._engine.stalled else self._waiting()

    def _waiting(self, timeout: float = 0.0) -> _Command | None:
        try:
            return self._commands.get(block=timeout > 0, timeout=timeout)
        except queue.Empty:
            return None

    def _end(self, engine: Engine, draft: Draft) -> None:
        self._stopping = True

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: the process ends, and nobody listens any more
            _LOG.debug("the event loop is gone")
