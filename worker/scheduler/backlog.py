"""The bound on waiting requests, per tenant and in all. Requests of which any choice was ever admitted are not in it."""

from collections import OrderedDict

from worker.sequence import Account, RequestState


class Backlog:
    """Counts requests, and knows whom to bounce when there are too many."""

    def __init__(self, *, limit: int, tenant_limit: int) -> None:
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._requests: dict[Account, OrderedDict[RequestState, float]] = {}  # none empty; value: virtual tokens
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def overfull(self) -> bool:
        """Whether one must be bounced."""
        return self._size > self._limit

    def tenant_full(self, account: Account) -> bool:
        """Whether the tenant has as many as it may."""
        return len(self._requests.get(account, ())) >= self._tenant_limit

    def add(self, request: RequestState, virtual_tokens: float) -> None:
        """The newest, expected to cost so much."""
        self._requests.setdefault(request.account, OrderedDict())[request] = virtual_tokens
        request.account.backlog_tokens += virtual_tokens
        self._size += 1

    def remove(self, request: RequestState) -> None:
        """It waits no more, if it did."""
        requests = self._requests.get(request.account)
        tokens = requests.pop(request, None) if requests is not None else None
        if requests is None or tokens is None:
            return
        self._size -= 1
        if requests:
            request.account.backlog_tokens -= tokens
        else:
            request.account.backlog_tokens = 0.0
            del self._requests[request.account]

    def to_bounce(self) -> RequestState | None:
        """The newest request of the tenant with the largest weighted backlog; one that lost a choice already is never bounced."""
        heaviest = max(self._requests, key=lambda account: account.backlog_tokens / account.weight)
        requests = reversed(self._requests[heaviest])
        return next((request for request in requests if request.live == len(request.spec.choices)), None)

    def check_integrity(self) -> None:
        """Raises AssertionError naming what does not hold."""
        assert self._size == sum(map(len, self._requests.values())), "backlog: its size is off"
        assert self._size <= self._limit, "backlog: over its limit"
        for account, requests in self._requests.items():
            assert requests, "backlog: an empty tenant"
            assert all(request.live for request in requests), "backlog: a dead request"
            tokens = sum(requests.values())
            assert abs(account.backlog_tokens - tokens) <= 1e-6 * (1 + tokens), "backlog: a tenant's tokens are off"
