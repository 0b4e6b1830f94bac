"""A thread that does one job after the other, the most urgent first, and tells the event loop of each. It runs beside the steps and below
them: where cores are short, they go first."""

import asyncio
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

_LOG = logging.getLogger("octavo.worker")
_T = TypeVar("_T")
NICENESS = 10


class Urgency(IntEnum):
    """Lower goes first."""

    NOW = 0  # a request or an operator waits
    SOON = 1  # a request may come
    IDLE = 2  # nobody has asked


_Job = tuple[int, int, "Callable[[], None] | None"]


class JobThread:
    """Made inside the event loop that is told. `prepare` is called once, on the thread."""

    def __init__(self, name: str, prepare: Callable[[], None] = lambda: None):
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._prepare = prepare
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], _T], urgency: Urgency = Urgency.NOW) -> "asyncio.Future[_T]":
        """Its result or its error. Jobs of one urgency are done in the order in which they came. A job whose future was cancelled before
        its turn is not done."""
        future: asyncio.Future[_T] = self._loop.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                self._post(_fail, future, error)
            else:
                self._post(_settle, future, result)

        self._jobs.put((urgency, next(self._numbers), run))
        return future

    def stop(self, timeout: float) -> bool:
        """End after the present job, whatever waits; whether it ended within `timeout` seconds."""
        self._jobs.put((-1, 0, None))
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        _yield_to_steps()
        self._prepare()
        while (job := self._jobs.get()[2]) is not None:
            job()
            del job  # and with it what it was given, while the thread waits

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed: the process ends, and nobody listens any more
            _LOG.debug("the event loop is gone")


def _settle(future: "asyncio.Future[Any]", result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _yield_to_steps() -> None:
    """Of this thread alone (on Linux each has its own niceness)."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError:
        _LOG.debug("the thread keeps its priority", exc_info=True)
