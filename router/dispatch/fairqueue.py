"""Who waits, by class, and in a class by start-time fair queueing over tenants (Goyal, Vin and Cheng, 1996).

A tenant's virtual time is what it was served, by weight; whoever has least is next, and whoever comes begins where the others are. So a
tenant's head waits for at most one request of each other tenant, however small requests are and however slowly places come free: deficit
round robin, which has turns of a fixed size, would let a flood of small requests take a dozen places in a row. A lane whose head cannot
be placed lets the others pass. A head rises one class for each `starve_s` that it has waited, as in the workers' queues.
"""

import heapq
import itertools
import time
from collections import defaultdict, deque
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
    """A tenant's items of one class, each with its cost and the time at which it came. `number` counts lanes."""

    tenant: Tenant
    number: int
    items: deque[tuple[float, float, T]] = field(default_factory=deque)

    def rank(self, now: float, starve_s: float) -> int:
        """The class that its head has by now."""
        return max(0, self.tenant.top_class - int((now - self.items[0][1]) / starve_s))


@dataclass(kw_only=True, slots=True)
class _Backlog:
    """A tenant's over all classes: `cost` is what its items cost, by its weight."""

    items: int = 0
    cost: float = 0.0


class FairQueue(Generic[T]):
    """A bounded queue of items, each with a tenant and a cost. Where all of it is full, the newest item of whoever has the largest
    backlog makes room for a tenant that has less."""

    def __init__(
        self,
        *,
        limit: int,
        tenant_limit: int,
        starve_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._starve_s = starve_s
        self._clock = clock
        self._lanes: dict[tuple[str, int], _Lane[T]] = {}  # none empty
        self._backlogs: dict[str, _Backlog] = {}  # none empty
        self._numbers = itertools.count()
        self._time = 0.0  # virtual, at which the last item began to be served
        self._ahead: dict[str, float] = {}  # virtual times of tenants that are beyond that, idle or not
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """Every item, lane by lane."""
        return (item for lane in list(self._lanes.values()) for _, _, item in list(lane.items))

    def waiting(self, tenant: Tenant) -> int:
        """How many items of `tenant` are here."""
        return self._backlogs.get(tenant.id, _Backlog()).items

    def why_full(self, tenant: Tenant, ahead: int = 0) -> QueueFull | None:
        """Why an item of `tenant` would find no place, once `ahead` others of it have come; None where it finds one."""
        backlog = self._backlogs.get(tenant.id, _Backlog())
        if backlog.items + ahead >= self._tenant_limit:
            return QueueFull(backlog.items + ahead)
        if self._size >= self._limit and backlog.cost >= max(other.cost for other in self._backlogs.values()):
            return QueueFull(self._size)
        return None

    def check_room(self, tenant: Tenant) -> None:
        """Raises QueueFull where an item of `tenant` would find no place."""
        full = self.why_full(tenant)
        if full is not None:
            raise full

    def add(self, tenant: Tenant, cost: float, item: T) -> T | None:
        """At the end of the tenant's lane. What had to make room for it is not here any more, and is returned. Raises QueueFull."""
        self.check_room(tenant)
        bounced = self._bounce() if self._size >= self._limit else None
        self._lane(tenant).items.append((cost, self._clock(), item))
        self._count(tenant, 1, cost)
        return bounced

    def put_back(self, tenant: Tenant, cost: float, item: T) -> None:
        """At the head of the tenant's lane, bounds or not: it had its place already."""
        self._lane(tenant).items.appendleft((cost, self._clock(), item))
        self._count(tenant, 1, cost)

    def remove(self, tenant: Tenant, item: T) -> bool:
        """Take `item` out, wherever it stands; says whether it was here."""
        lane = self._lanes.get((tenant.id, tenant.top_class))
        found = next((entry for entry in lane.items if entry[2] is item), None) if lane else None
        if lane is None or found is None:
            return False
        lane.items = deque(entry for entry in lane.items if entry is not found)
        self._took(lane, found[0])
        return True

    def serve(self, place: Callable[[T], bool]) -> None:
        """Offer heads in fair order, the highest class first, until none of them can be placed. `place` must not touch this queue."""
        now = self._clock()
        ranks: defaultdict[int, list[_Lane[T]]] = defaultdict(list)
        for lane in self._lanes.values():
            ranks[lane.rank(now, self._starve_s)].append(lane)
        while ranks:
            rank = min(ranks)
            for lane in self._serve_rank(rank, ranks.pop(rank), place, now):
                ranks[lane.rank(now, self._starve_s)].append(lane)

    def _serve_rank(self, rank: int, lanes: list[_Lane[T]], place: Callable[[T], bool], now: float) -> list[_Lane[T]]:
        """Serves lanes of one class; those that are left whose head is now of a lower one, the one that had risen being gone."""
        fallen: list[_Lane[T]] = []
        order = [(self._virtual(lane), lane.number, lane) for lane in lanes]
        heapq.heapify(order)
        while order:
            offered, _, lane = heapq.heappop(order)
            virtual = self._virtual(lane)
            if virtual > offered:  # another lane of the tenant was served since
                heapq.heappush(order, (virtual, lane.number, lane))
                continue
            cost, _, item = lane.items[0]
            if not place(item):
                continue
            lane.items.popleft()
            self._charge(lane, virtual, cost)
            if lane.items and lane.rank(now, self._starve_s) > rank:
                fallen.append(lane)
            elif lane.items:
                heapq.heappush(order, (self._virtual(lane), lane.number, lane))
        return fallen

    def _virtual(self, lane: _Lane[T]) -> float:
        """The lane's tenant's virtual time: no less than the time at which the last item began."""
        return max(self._time, self._ahead.get(lane.tenant.id, 0.0))

    def _charge(self, lane: _Lane[T], virtual: float, cost: float) -> None:
        """An item of the lane began at `virtual`. Tenants that are not ahead of that any more are forgotten."""
        self._ahead[lane.tenant.id] = virtual + cost / lane.tenant.weight
        if virtual > self._time:
            self._time = virtual
            self._ahead = {tenant_id: at for tenant_id, at in self._ahead.items() if at > virtual}
        self._took(lane, cost)

    def _bounce(self) -> T:
        """The newest item, of the lowest class, of the tenant with the largest backlog."""
        tenant_id = max(self._backlogs, key=lambda tenant_id: self._backlogs[tenant_id].cost)
        lowest = max(class_ for owner, class_ in self._lanes if owner == tenant_id)
        lane = self._lanes[tenant_id, lowest]
        cost, _, item = lane.items.pop()
        self._took(lane, cost)
        return item

    def _lane(self, tenant: Tenant) -> _Lane[T]:
        key = (tenant.id, tenant.top_class)
        if key not in self._lanes:
            self._lanes[key] = _Lane(tenant=tenant, number=next(self._numbers))
        return self._lanes[key]

    def _took(self, lane: _Lane[T], cost: float) -> None:
        """An item of the lane is gone."""
        self._count(lane.tenant, -1, -cost)
        if not lane.items:
            del self._lanes[lane.tenant.id, lane.tenant.top_class]

    def _count(self, tenant: Tenant, items: int, cost: float) -> None:
        backlog = self._backlogs.setdefault(tenant.id, _Backlog())
        self._size += items
        backlog.items += items
        backlog.cost += cost / tenant.weight
        if not backlog.items:
            del self._backlogs[tenant.id]
