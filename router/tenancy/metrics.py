"""What tenants ask and use, as counters. Their names are few: the operator's own, and from some number on `other`."""

from prometheus_client import CollectorRegistry, Counter

from router.request import Usage

MOST_TENANTS = 200
OTHER = "other"  # no tenant's name in these counters, though one may be called so: it is counted there too


class TenantMetrics:
    """Of one router process."""

    def __init__(self, registry: CollectorRegistry):
        name, help_ = "octavo_router_tenant_requests", "Requests of a tenant that have ended, by outcome"
        self._requests = Counter(name, help_, ("tenant", "outcome"), registry=registry)
        name, help_ = (
            "octavo_router_tenant_tokens",
            "Tokens charged to a tenant: prompt, cached (of the prompt), output",
        )
        self._tokens = Counter(name, help_, ("tenant", "kind"), registry=registry)
        self._known: set[str] = set()

    def _label(self, tenant: str) -> str:
        if len(self._known) < MOST_TENANTS:
            self._known.add(tenant)
        return tenant if tenant in self._known else OTHER

    def ended(self, tenant: str, outcome: str, usage: Usage | None) -> None:
        """A request is over: `outcome` is ok, cancelled, or an error's code; `usage` is what it is charged."""
        label = self._label(tenant)
        self._requests.labels(label, outcome).inc()
        if usage is not None:
            self._tokens.labels(label, "prompt").inc(usage.prompt_tokens)
            self._tokens.labels(label, "cached").inc(usage.cached_tokens)
            self._tokens.labels(label, "output").inc(usage.completion_tokens)
