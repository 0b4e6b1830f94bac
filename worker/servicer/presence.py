"""Whether a router is still there and takes what it is sent. Pure: every question is asked with the time."""

from worker.servicer.settings import StreamSettings


class Presence:
    """Any frame is a sign of life; a router pings each second."""

    def __init__(self, settings: StreamSettings, now: float):
        self._settings = settings
        self._heard = now
        self._looked = now
        self._behind_since: float | None = None

    def heard(self, now: float) -> None:
        """A frame has come."""
        self._heard = now

    def silent(self, now: float) -> bool:
        """A regular look. Where this process itself stood still since the last one, that time is no silence of the router's."""
        if now - self._looked > self._settings.stall_after:
            self._heard = min(now, self._heard + now - self._looked)
        self._looked = now
        return now - self._heard >= self._settings.silent_after

    def stuck(self, now: float, undelivered: int) -> bool:
        """A regular look. What waits goes out merged: one who reads at all is not behind for long, not even where hundreds of requests end
        at once."""
        if undelivered <= self._settings.undelivered:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        return self._behind_since is not None and now - self._behind_since >= self._settings.stuck_after
