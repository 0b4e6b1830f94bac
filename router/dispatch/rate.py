"""How often something happens, forgetting the past: an exponentially decayed count over its decayed time."""

import math
from collections.abc import Callable

_WINDOW = 10.0  # seconds after which an event weighs 1/e


class Rate:
    """Events per second of the last while."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._start = self._at = clock()
        self._weight = 0.0

    def note(self) -> None:
        """One event, now."""
        self._decay()
        self._weight += 1.0

    def per_second(self) -> float:
        """0 where nothing was seen."""
        self._decay()
        span = _WINDOW * (1.0 - math.exp(-max(self._at - self._start, 1e-3) / _WINDOW))
        return self._weight / span

    def _decay(self) -> None:
        now = self._clock()
        self._weight *= math.exp(-(now - self._at) / _WINDOW)
        self._at = now


def retry_after(ahead: int, per_second: float) -> float:
    """Seconds until `ahead` requests will have gone at this rate: at least 1, at most 60."""
    return min(60.0, max(1.0, math.ceil(ahead / per_second))) if per_second > 1e-6 else 1.0
