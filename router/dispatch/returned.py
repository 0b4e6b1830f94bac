"""Requests that a worker had and that need another: where each may go, and how long it waits where nobody can take it."""

from collections.abc import Iterator, Sequence

from router.dispatch.flight import Flight
from router.fleet.link import WorkerLink
from shared.types import WorkerInfo


def eligible(flight: Flight, links: Sequence[WorkerLink], *, exact: bool) -> list[WorkerLink]:
    """Of a pool's links those to which `flight` may go.

    Where it has tokens, workers of the same numerics go before others, which with `exact` get none.
    """
    free = [link for link in links if link.worker and link.worker.info.worker_id not in flight.trail.avoided]
    if not flight.begun or flight.inexact:
        return free
    same = [link for link in free if link.worker and _equals(flight, link.worker.info)]
    return same if same or exact else free


def _equals(flight: Flight, info: WorkerInfo) -> bool:
    return flight.equals(info.worker_id, info.numerics_id)


class Returned:
    """Those of one pool, in the order in which they came back. They are placed before any that has had no worker."""

    def __init__(self) -> None:
        self._flights: dict[Flight, None] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._flights))

    def add(self, flight: Flight) -> None:
        """It came back."""
        self._flights[flight] = None

    def discard(self, flight: Flight) -> None:
        """It has gone again, or ended."""
        self._flights.pop(flight, None)


class Probation:
    """At most one request on probation a worker, so that a worker's loss names the request that did it."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}  # worker_id -> the last sent there

    def admits(self, worker_id: str, flight: Flight) -> bool:
        """Whether `flight` may go there now."""
        other = self._flights.get(worker_id)
        return not flight.trail.probation or other is None or not self._there(other, worker_id)

    def sent(self, worker_id: str, flight: Flight) -> None:
        """It went there."""
        if flight.trail.probation:
            self._flights[worker_id] = flight

    def ended(self, flight: Flight) -> None:
        """It is over."""
        if self._flights.get(flight.worker_id) is flight:
            del self._flights[flight.worker_id]

    @staticmethod
    def _there(other: Flight, worker_id: str) -> bool:
        """Whether it still is on probation at that worker."""
        return other.trail.probation and other.ticket is not None and other.worker_id == worker_id
