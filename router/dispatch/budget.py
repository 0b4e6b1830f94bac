"""Bounds what rejected requests add to an overloaded fleet: retries may be a share of the requests, and some more in a burst."""


class RetryBudget:
    """Each request sent for the first time pays in `share`; each retry takes out one. At most `burst` is kept, and there at the start."""

    def __init__(self, *, share: float, burst: float):
        self._share = share
        self._burst = burst
        self._balance = burst

    def earn(self) -> None:
        """A request was sent for the first time."""
        self._balance = min(self._burst, self._balance + self._share)

    def spend(self) -> bool:
        """Whether one more retry may be; it is taken out then."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
