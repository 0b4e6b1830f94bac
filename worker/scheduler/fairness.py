"""Weighted virtual token counters (VTC, Sheng et al. 2024): whoever has had least per weight is served first.

An uncached prompt token costs 1 and an output token 2. A tenant that returns from idle starts no lower than the least of those that are
active, so that nobody saves up service by being away; its own higher count it keeps. The same holds among a tenant's adapters (the
base model is one of them), which weigh alike; their counts are forgotten when they are idle.
"""

from collections import OrderedDict
from collections.abc import Iterable

from shared.types import Tenant
from worker.sequence import Account, RequestState, Share

PROMPT_COST = 1.0
OUTPUT_COST = 2.0
REMEMBERED = 1024  # idle tenants whose count is kept; the longest idle is forgotten first


class Accounts:
    """Every tenant that has live sequences, and the last ones that had."""

    def __init__(self) -> None:
        self._active: dict[str, Account] = {}
        self._idle: OrderedDict[str, Account] = OrderedDict()
        self._last_served = 0.0  # of the tenant that left last

    @property
    def several(self) -> bool:
        """Whether more than one tenant is active."""
        return len(self._active) > 1

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
        self._last_served = account.served
        self._idle[account.tenant_id] = account
        if len(self._idle) > REMEMBERED:
            self._idle.popitem(last=False)
