"""What Octavo's long-running processes have in common: how they are stopped, and what they tell whoever supervises them."""

import asyncio
import gc
import json
import signal
import sys

# Seconds that a thread which has work waits for another that computes (Python's own 5 ms). Each call that lets go of Python's lock, into
# SQLite or torch, waits so long to have it back; a request's reservation has ten of them.
SWITCH_SECONDS = 0.0005


def tune_threads() -> None:
    """For a process whose event loop and working threads have to do at the same time."""
    sys.setswitchinterval(SWITCH_SECONDS)


def keep_all() -> None:
    """What is there now stays to the end: the garbage collector need not walk it again and again, while everything waits."""
    gc.collect()
    gc.freeze()


class Stop:
    """SIGTERM and SIGINT: the first asks for a drain, the second for the end."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def install(self) -> None:
        """Takes both signals from here on; called inside the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.now if self.drain.is_set() else self.drain).set()


def tell(**event: object) -> None:
    """One JSON line on stdout."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
