"""When a stream's next Load goes: at a change, but not sooner than a gap after the last; and at least once an interval."""

import asyncio
from collections.abc import Callable

from worker.servicer.settings import StreamSettings


class LoadPacer:
    """Calls `send` on the event loop when a Load is due. Times are the loop's."""

    def __init__(self, settings: StreamSettings, send: Callable[[], None]):
        self._settings = settings
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._timer = self._loop.call_soon(send)

    def changed(self, *, urgent: bool) -> None:
        """What a Load tells is not what the last one told; urgent where the router can send nothing before it hears of it."""
        self._arm(self._sent_at + (self._settings.credit_gap if urgent else self._settings.load_gap))

    def sent(self) -> None:
        """A Load has been made."""
        self._sent_at = self._loop.time()
        self._arm(self._sent_at + self._settings.load_interval)

    def stop(self) -> None:
        """No more."""
        self._timer.cancel()

    def _arm(self, at: float) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(at, self._send)
