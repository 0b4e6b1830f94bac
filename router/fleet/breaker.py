"""Whether a worker that keeps failing gets requests. Pure: every question is asked with the time.

Failures are what a worker does wrong: a lost connection with requests on it, or requests that it ends with an error of its own. Neither a
full queue nor a caller that leaves is one. After `breaker_failures` in a row the breaker is open, and the worker gets nothing; after a
pause, which doubles each time, one request is its probe. The probe's first token closes the breaker, its failure opens it again.
"""

from enum import Enum

from router.fleet.settings import LinkSettings


class BreakerState(Enum):
    """Of a breaker, for people and gauges."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker:
    """One target's, over all its connections and starts."""

    def __init__(self, settings: LinkSettings):
        self._settings = settings
        self._failures = 0
        self._until = 0.0  # when the next probe is due
        self._pause = settings.breaker_pause
        self._probing = False
        self.state = BreakerState.CLOSED

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        match self.state:
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return now >= self._until
            case BreakerState.PROBING:
                return not self._probing

    def sent(self, now: float) -> None:
        """A request goes out; of an open breaker it is the probe."""
        if self.state is BreakerState.OPEN and now >= self._until:
            self.state = BreakerState.PROBING
        self._probing = self.state is BreakerState.PROBING

    def withdrawn(self) -> None:
        """A request ended and tells nothing of the worker: the next is the probe, if there was one."""
        self._probing = False

    def progressed(self) -> None:
        """A request got its first token. After a probe's, one more failure opens the breaker again."""
        if self.state is BreakerState.PROBING:
            self.state = BreakerState.CLOSED
            self._probing = False
            self._failures = self._settings.breaker_failures - 1

    def succeeded(self) -> None:
        """A request ended as it should."""
        if self.state is not BreakerState.OPEN:
            self.state, self._probing = BreakerState.CLOSED, False
            self._failures, self._pause = 0, self._settings.breaker_pause

    def failed(self, now: float) -> None:
        """The worker did something wrong."""
        self._failures += 1
        if self.state is BreakerState.OPEN or self._failures < self._settings.breaker_failures:
            return
        self.state, self._probing = BreakerState.OPEN, False
        self._until = now + self._pause
        self._pause = min(2 * self._pause, self._settings.breaker_pause_most)
