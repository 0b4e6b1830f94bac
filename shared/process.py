"""What Octavo's long-running processes have in common: how they are stopped, and what they tell whoever supervises them."""

import asyncio
import json
import signal
import sys


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
