"""Weighted virtual token counters (VTC, Sheng et al. 2024): whoever has had least per weight is served first.

An uncached prompt token costs 1 and an output token 2. A tenant that returns from idle starts no lower than the least of those that are
active, so that nobody saves up service by being away; its own higher count it keeps.
"""

from collections import OrderedDict
from collections.abc import Iterable

from shared.types import Tenant
from worker.sequence import Account

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

    def enter(self, account: Account, tenant: Tenant, sequences: int) -> None:
        """So many sequences more; the tenant's weight is what it says now."""
        account.weight = tenant.weight
        if account.live == 0:
            floor = min((other.served for other in self._active.values()), default=self._last_served)
            account.served = max(account.served, floor)
            self._idle.pop(account.tenant_id, None)
            self._active[account.tenant_id] = account
        account.live += sequences

    def leave(self, account: Account) -> None:
        """One sequence less."""
        account.live -= 1
        if account.live:
            return
        del self._active[account.tenant_id]
        self._last_served = account.served
        self._idle[account.tenant_id] = account
        if len(self._idle) > REMEMBERED:
            self._idle.popitem(last=False)
