"""What a request may use: reserved before it is dispatched, settled or abandoned once at its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from router.request import Usage
from router.tenancy.caller import Caller
from router.tenancy.rates import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a request may use at most. `charge_id` is unique, and the same however often it is asked."""

    charge_id: str
    model: str
    adapter: str = ""
    prompt_tokens: int
    output_tokens: int  # over all choices


Meter = Callable[[], Usage]


class Reservation(Protocol):
    """A request's hold on its tenant's quotas. The first of settle and abandon counts; nothing after it does."""

    @property
    def rates(self) -> Rates | None:
        """The tenant's rates just after this was reserved; None where it has none."""

    def follow(self, meter: Meter) -> None:
        """`meter` tells what was used so far; it is asked every two seconds, so that a crash forgets no more than that."""

    def settle(self, usage: Usage, finish: str, worker: str) -> None:
        """It used this. Returns at once; see `closed`."""

    def abandon(self) -> None:
        """It used nothing that anybody is to pay for. Returns at once; see `closed`."""

    async def closed(self) -> None:
        """Returns once the settlement is kept, such that no crash of this process undoes it."""


class Admission(Protocol):
    """Lets requests in."""

    def check(self, caller: Caller) -> None:
        """Raises RateLimited where a reservation of the caller's tenant is known to be refused, whatever it is for. It asks nobody."""

    async def reserve(self, caller: Caller, estimate: Estimate) -> Reservation:
        """Raises RateLimited (with `retry_after`) or InvalidRequest where the tenant's limits do not allow it."""

    async def aclose(self) -> None:
        """Keeps all that was settled; nothing is reserved afterwards."""


class OpenReservation:
    """Nothing is counted."""

    rates: Rates | None = None

    def follow(self, meter: Meter) -> None:
        """See Reservation."""

    def settle(self, usage: Usage, finish: str, worker: str) -> None:
        """See Reservation."""

    def abandon(self) -> None:
        """See Reservation."""

    async def closed(self) -> None:
        """See Reservation."""


class OpenAdmission:
    """Lets everyone in: where no store is configured."""

    def check(self, caller: Caller) -> None:
        """See Admission."""

    async def reserve(self, caller: Caller, estimate: Estimate) -> Reservation:
        """See Admission."""
        return OpenReservation()

    async def aclose(self) -> None:
        """See Admission."""
