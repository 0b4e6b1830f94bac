"""Which tenants have less at the workers than their share: the last places are theirs (router.fleet.reserve)."""

from collections import Counter

from shared.types import Tenant


class Shares:
    """What each tenant has at the workers of one pool: requests that were sent and have not ended."""

    def __init__(self) -> None:
        self._there: Counter[str] = Counter()
        self._weights: dict[str, float] = {}  # of those that have any

    def sent(self, tenant: Tenant) -> None:
        """One more of its requests is at a worker."""
        self._there[tenant.id] += 1
        self._weights[tenant.id] = tenant.weight

    def ended(self, tenant: Tenant) -> None:
        """One of them is over."""
        self._there[tenant.id] -= 1
        if not self._there[tenant.id]:
            del self._there[tenant.id], self._weights[tenant.id]

    def has_its_share(self, tenant: Tenant) -> bool:
        """Whether it has no less than its share of what all have there, by weight. Where nobody else has anything, nobody's is taken."""
        weights = self._weights | {tenant.id: tenant.weight}
        mine = self._there[tenant.id] * sum(weights.values())
        return len(weights) > 1 and mine >= self._there.total() * tenant.weight
