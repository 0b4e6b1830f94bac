"""Weighted virtual token counters (VTC, Sheng et al. 2024): whoever has had least per weight is served first.

An uncached prompt token costs 1 and an output token 2. A tenant that returns from idle starts no lower than the least of those that are
active, so that nobody saves up service by being away; its own higher count it keeps. A tenant that sends a request now and then is here
between them too: for a while after its last one, others leave it what it has needed lately. The same holds among a tenant's adapters (the
base model is one of them), which weigh alike; their counts are forgotten when they are idle.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from shared.types import Tenant
from worker.sequence import Account, RequestState, Share

PROMPT_COST = 1.0
OUTPUT_COST = 2.0
REMEMBERED = 1024  # idle tenants whose count is kept; the longest idle is forgotten first
RECENT_S = 2.0  # for which a tenant is here after its last sequence, and a peak of slots counts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Here:
    """Of all tenants that were here when the step began: their peaks and weights in sum, and the least that an active one had had."""

    peaks: int = 0
    weights: float = 0.0
    least: float = 0.0


class Accounts:
    """Every tenant that has live sequences, and the last ones that had."""

    def __init__(self) -> None:
        self._active: dict[str, Account] = {}
        self._idle: OrderedDict[str, Account] = OrderedDict()
        self._last_served = 0.0  # of the tenant that left last
        self.now = 0.0  # seconds
        self._here = _Here()

    @property
    def several(self) -> bool:
        """Whether more than one tenant is here: active, or was lately."""
        return len(self._active) > 1 or (bool(self._active) and next(self._recent(), None) is not None)

    def look(self) -> None:
        """Before a step: what each has had lately."""
        for account in self._active.values():
            if account.slots >= account.peak or self.now - account.peak_at > RECENT_S:
                account.peak, account.peak_at = account.slots, self.now
        here = [*self._active.values(), *self._recent()]
        self._here = _Here(
            peaks=sum(account.peak for account in here),
            weights=sum(account.weight for account in here),
            least=min((account.served for account in self._active.values()), default=0.0),
        )

    def _recent(self) -> Iterator[Account]:
        """Those that left lately, the last first."""
        return takewhile(lambda account: self.now - account.left_at <= RECENT_S, reversed(self._idle.values()))

    def room_beside(self, account: Account, slots: int) -> int:
        """How many of so many slots the active tenant may have, such that all others that are here find as many as they have lately had at
        most, and one more. Its share by weight it may always have, and all of them while nobody has had less than it."""
        if not self.several or (len(self._active) > 1 and account.served <= self._here.least):
            return slots
        fair = math.ceil(slots * account.weight / max(self._here.weights, account.weight))
        return max(fair, slots - 1 - max(0, self._here.peaks - account.peak))

    @property
    def active(self) -> Iterable[Account]:
        """Those with live sequences."""
        return self._active.values()

    def get(self, tenant: Tenant) -> Account:
        """The tenant's account as it would be active, without making it so; `enter` does that."""
        account = self._active.get(tenant.id) or self._idle.get(tenant.id)
        return account or Account(tenant_id=tenant.id, weight=tenant.weight)

    def enter(self, request: RequestState) -> None:
        """All of its sequences are live now; the tenant's weight is what it says now."""
        account, tenant = request.account, request.spec.tenant
        account.weight = tenant.weight
        if account.live == 0:
            floor = min((other.served for other in self._active.values()), default=self._last_served)
            account.served = max(account.served, floor)
            self._idle.pop(account.tenant_id, None)
            self._active[account.tenant_id] = account
        account.live += request.live
        request.share = self._share(account, request.spec.adapter_digest)
        request.share.live += request.live

    @staticmethod
    def _share(account: Account, digest: bytes) -> Share:
        if digest not in account.shares:
            served = min((share.served for share in account.shares.values()), default=0.0)
            account.shares[digest] = Share(served=served)
        return account.shares[digest]

    def leave(self, request: RequestState) -> None:
        """One of its sequences less."""
        account = request.account
        account.live -= 1
        request.share.live -= 1
        if not request.share.live:
            del account.shares[request.spec.adapter_digest]
        if account.live:
            return
        del self._active[account.tenant_id]
        account.left_at = self.now
        self._last_served = account.served
        self._idle[account.tenant_id] = account
        if len(self._idle) > REMEMBERED:
            self._idle.popitem(last=False)
