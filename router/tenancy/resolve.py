"""From a call's credentials to its tenant. No header that a client chooses ever names a tenant."""

from shared.types import OPEN_TENANT, Tenant


def resolve(credentials: str | None = None) -> Tenant:
    """The tenant of `credentials`. No keys are configured yet: everyone is the open tenant, whatever they send."""
    del credentials
    return OPEN_TENANT
