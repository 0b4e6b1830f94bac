"""Where requests of both edges wait to be read, tenant by tenant: a thousand of one that come at once are no wall before another's. What
will be refused whatever it asks for is refused here, before anything of it is parsed."""

import asyncio

from router.service import Service
from router.tenancy.caller import Caller
from router.tenancy.turnstile import Turnstile
from shared.types import OPEN_TENANT

PASSING_AT_ONCE = 2  # requests, one of a tenant, between two looks at what else has come
CROWD = 16  # requests of a tenant that wait in the router
PACE_SECONDS = 0.02  # that one of a crowd takes to pass: it would wait all the same, and reading it takes the processor from what runs


class Door:
    """One for both edges of a router."""

    def __init__(self, service: Service):
        self._service = service
        self._turns = Turnstile(PASSING_AT_ONCE)
        self._passed = False  # somebody, in this turn of the loop

    def check(self, caller: Caller) -> None:
        """Raises Overloaded or RateLimited where a generation of the caller's would find no place: those of its tenant that wait here have
        theirs before it."""
        self._service.check_room(caller, ahead=self._turns.waiting(caller.tenant.id))

    async def enter(self, caller: Caller) -> None:
        """Returns when a generation of the caller's may be read. Raises what `check` raises."""
        self.check(caller)
        async with self._turns.turn(caller.tenant.id):
            if self._crowded(caller):
                await asyncio.sleep(PACE_SECONDS)
            elif not self._first():
                await asyncio.sleep(0)  # the loop looks at what else has come
        self._service.check_room(caller)

    async def pass_by(self, caller: Caller) -> None:
        """Returns when another call of the caller's may be read."""
        async with self._turns.turn(caller.tenant.id):
            await asyncio.sleep(0)

    def _first(self) -> bool:
        """Whether nobody else has passed in this turn of the loop. Who comes alone waits for nothing."""
        if self._passed:
            return False
        self._passed = True
        asyncio.get_running_loop().call_soon(self._turned)
        return True

    def _turned(self) -> None:
        self._passed = False

    def _crowded(self, caller: Caller) -> bool:
        """Whether there are others whom reading could hold up, and so many of this one's wait that it loses nothing by it."""
        return caller.tenant is not OPEN_TENANT and self._service.waiting(caller) >= CROWD
