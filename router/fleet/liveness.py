"""What a worker's silence and its reports say of it. Pure: every question is asked with the time."""

from router.fleet.settings import LinkSettings
from shared.types import Load


class Liveness:
    """One connection's. Any frame is a sign of life; only a Load grants credit, and not for long.

    By its last report a worker is `hung` that has work and makes no step, alive and as good as dead; and `draining` one that takes
    nothing more.
    """

    def __init__(self, settings: LinkSettings, now: float):
        self._settings = settings
        self._heard = now
        self._looked = now
        self._load_at = now
        self.load: Load | None = None
        self.hung = False
        self.draining = False

    def heard(self, now: float) -> None:
        """A frame has come."""
        self._heard = now

    def loaded(self, load: Load, now: float) -> None:
        """A report has come."""
        self.load, self._load_at, self.draining = load, now, load.draining
        patience = max(self._settings.hung_after, self._settings.hung_steps * load.predicted_step_ms / 1000)
        self.hung = load.has_work and load.last_step_age_ms / 1000 > patience

    def look(self, now: float) -> None:
        """A regular look. Where this process itself stood still since the last one, that time is no silence of the worker's."""
        if now - self._looked > self._settings.stall_after:
            self._heard = min(now, self._heard + now - self._looked)
        self._looked = now

    def suspect(self, now: float) -> bool:
        """Silent so long that it gets nothing new."""
        return now - self._heard >= self._settings.suspect_after

    def dead(self, now: float) -> bool:
        """Silent so long that its requests are given up."""
        return now - self._heard >= self._settings.dead_after

    def credits(self, now: float) -> int:
        """Submits granted beyond the report's acked_seq; a report older than the credit's life grants none."""
        if self.load is None or now - self._load_at > self._settings.credit_ttl:
            return 0
        return self.load.credits
