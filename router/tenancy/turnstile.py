"""Turns at work that many requests need at once, tenant by tenant: whoever sends a thousand waits for its own, and others pass between."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turnstile:
    """Lets `width` through at a time. No tenant has more than three quarters of that, so that another finds it free; those who wait take
    turns by tenant, and in a tenant by arrival."""

    def __init__(self, width: int):
        self._width = width
        self._most = max(1, min(width - 1, width - width // 4))
        self._inside: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # none empty; the first tenant is the next
        self._taken = 0

    def waiting(self, tenant_id: str) -> int:
        """How many of the tenant's wait for their turn."""
        return len(self._waiting.get(tenant_id, ()))

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """The block is one turn."""
        if self._may_pass(tenant_id) and tenant_id not in self._waiting:
            self._enter(tenant_id)
        else:
            await self._wait(tenant_id)
        try:
            yield
        finally:
            self._leave(tenant_id)

    def _may_pass(self, tenant_id: str) -> bool:
        return self._taken < self._width and self._inside[tenant_id] < self._most

    def _enter(self, tenant_id: str) -> None:
        self._taken += 1
        self._inside[tenant_id] += 1

    def _leave(self, tenant_id: str) -> None:
        self._taken -= 1
        self._inside[tenant_id] -= 1
        if not self._inside[tenant_id]:
            del self._inside[tenant_id]
        self._let_in()

    async def _wait(self, tenant_id: str) -> None:
        """Returns once it has entered."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._leave(tenant_id)  # it was let in, and left before it knew
            else:
                self._forget(tenant_id, future)
            raise

    def _forget(self, tenant_id: str, future: "asyncio.Future[None]") -> None:
        """It may be gone already: passed over after it was cancelled, before its task knew."""
        lane = self._waiting.get(tenant_id, deque())
        if future in lane:
            lane.remove(future)
            if not lane:
                del self._waiting[tenant_id]

    def _let_in(self) -> None:
        """Whoever may pass, tenant by tenant."""
        while (tenant_id := next(filter(self._may_pass, self._waiting), None)) is not None:
            lane = self._waiting.pop(tenant_id)
            future = lane.popleft()
            if not future.done():  # else it was cancelled
                future.set_result(None)
                self._enter(tenant_id)
            if lane:
                self._waiting[tenant_id] = lane  # behind the others

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert self._taken == sum(self._inside.values()) <= self._width
        assert all(0 < count <= self._most for count in self._inside.values())
        assert all(self._waiting.values())
        assert not any(map(self._may_pass, self._waiting)), "a place is free, and one waits for it"
