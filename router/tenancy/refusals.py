"""Refusals that stand for a moment: a tenant that floods asks the store four times a second, and is refused at the door in between."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from router.tenancy.rates import SLICE_MS
from router.tenancy.records import Limits
from router.tenancy.store import Refused

STANDS_SECONDS = SLICE_MS / 1000  # what comes back does so by slices: nothing that is told is older than one


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    refused: Refused


class Refusals:
    """The last refusal of each tenant that would meet any other request of it too. `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._live: Counter[str] = Counter()  # reservations of this process
        self._told: dict[str, _Told] = {}

    def began(self, tenant: str) -> None:
        """One more of its reservations lives here; there was room, so no refusal stands."""
        self._live[tenant] += 1
        self._told.pop(tenant, None)

    def ended(self, tenant: str) -> None:
        """One of them lives no more."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]

    def note(self, tenant: str, refused: Refused) -> None:
        """The store has refused a reservation of `tenant`. How many tokens the next one wants is not known: those refusals say nothing of
        it."""
        if refused.limit in ("requests_per_minute", "concurrent_requests"):
            self._told[tenant] = _Told(self._clock(), refused)

    def standing(self, tenant: str, limits: Limits) -> Refused | None:
        """The refusal that the store would give now, whatever is asked for; None where that is not known."""
        told = self._told.get(tenant)
        if told is None:
            return None
        age = self._clock() - told.at
        if age >= min(STANDS_SECONDS, told.refused.retry_after) or getattr(limits, told.refused.limit) is None:
            del self._told[tenant]
            return None
        if told.refused.limit == "requests_per_minute":
            return replace(told.refused, retry_after=told.refused.retry_after - age)
        most = limits.concurrent_requests
        return told.refused if most is not None and self._live[tenant] >= most else None
