"""Simulated time: what is to happen when, in order, the earlier asked first where two are at once."""

import heapq
from collections.abc import Callable


class SimClock:
    """Call it for the time, in seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        self._asked = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self._now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Have it happen then, or now where that is past."""
        self._asked += 1
        heapq.heappush(self._due, (max(when, self._now), self._asked, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have it happen so much later."""
        self.at(self._now + seconds, action)

    def run(self) -> None:
        """Until nothing is due any more."""
        while self._due:
            self._now, _, action = heapq.heappop(self._due)
            action()
