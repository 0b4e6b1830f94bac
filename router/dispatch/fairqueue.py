"""Deficit round robin over tenants (Shreedhar and Varghese, 1995): who waits longest in its own lane, lanes in turn by weight.

Each turn adds `quantum * weight` to a lane's deficit; a lane's head is served once its cost is covered. A lane whose head cannot be
placed keeps its turn and lets the others pass.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shared.types import Tenant

T = TypeVar("T")


class QueueFull(Exception):
    """No place; `ahead` requests of the same tenant, or of all, are waiting."""

    def __init__(self, ahead: int):
        super().__init__(f"{ahead} requests are waiting")
        self.ahead = ahead


@dataclass(kw_only=True, slots=True, eq=False)
class _Lane(Generic[T]):
    weight: float
    deficit: float = 0.0
    items: deque[tuple[float, T]] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """A bounded queue of items, each with a tenant and a cost."""

    def __init__(self, *, limit: int, tenant_limit: int, quantum: float):
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._quantum = quantum
        self._lanes: dict[str, _Lane[T]] = {}  # none empty
        self._turns: list[_Lane[T]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """Every item, lane by lane."""
        return (item for lane in list(self._turns) for _, item in list(lane.items))

    def check_room(self, tenant: Tenant) -> None:
        """Raises QueueFull where an item of `tenant` would find no place."""
        lane = self._lanes.get(tenant.id)
        if lane is not None and len(lane.items) >= self._tenant_limit:
            raise QueueFull(len(lane.items))
        if self._size >= self._limit:
            raise QueueFull(self._size)

    def add(self, tenant: Tenant, cost: float, item: T) -> None:
        """At the end of the tenant's lane. Raises QueueFull."""
        self.check_room(tenant)
        self._lane(tenant).items.append((cost, item))
        self._size += 1

    def put_back(self, tenant: Tenant, cost: float, item: T) -> None:
        """At the head of the tenant's lane, bounds or not: it had its place already."""
        self._lane(tenant).items.appendleft((cost, item))
        self._size += 1

    def remove(self, tenant: Tenant, item: T) -> bool:
        """Take `item` out, wherever it stands; says whether it was here."""
        lane = self._lanes.get(tenant.id)
        if lane is None:
            return False
        kept = deque((cost, other) for cost, other in lane.items if other is not item)
        if len(kept) == len(lane.items):
            return False
        lane.items = kept
        self._size -= 1
        self._drop_if_empty(tenant.id, lane)
        return True

    def serve(self, place: Callable[[T], bool], tenant_of: Callable[[T], Tenant]) -> None:
        """Offer heads in fair order until none of them can be placed. `place` must not touch this queue."""
        at = 0
        while at < len(self._turns):
            lane = self._turns[at]
            cost, item = lane.items[0]
            if lane.deficit < cost:
                lane.deficit += self._quantum * lane.weight
                self._turns.append(self._turns.pop(at))
            elif not place(item):
                at += 1
            else:
                lane.items.popleft()
                lane.deficit -= cost
                self._size -= 1
                self._drop_if_empty(tenant_of(item).id, lane)

    def _lane(self, tenant: Tenant) -> _Lane[T]:
        lane = self._lanes.get(tenant.id)
        if lane is None:
            lane = self._lanes[tenant.id] = _Lane(weight=tenant.weight)
            self._turns.append(lane)
        return lane

    def _drop_if_empty(self, tenant_id: str, lane: _Lane[T]) -> None:
        if not lane.items:
            del self._lanes[tenant_id]
            self._turns.remove(lane)
