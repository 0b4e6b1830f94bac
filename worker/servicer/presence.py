"""Whether a router is still there. Pure: every question is asked with the time."""

from worker.servicer.settings import StreamSettings


class Presence:
    """Any frame is a sign of life; a router pings each second."""

    def __init__(self, settings: StreamSettings, now: float):
        self._settings = settings
        self._heard = now
        self._looked = now

    def heard(self, now: float) -> None:
        """A frame has come."""
        self._heard = now

    def silent(self, now: float) -> bool:
        """A regular look. Where this process itself stood still since the last one, that time is no silence of the router's."""
        if now - self._looked > self._settings.stall_after:
            self._heard = min(now, self._heard + now - self._looked)
        self._looked = now
        return now - self._heard >= self._settings.silent_after
