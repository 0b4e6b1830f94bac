"""The registry of a router's tenancy."""

from router.adapters.registry import Registry
from router.tenancy.start import Tenancy


def registry_of(tenancy: Tenancy) -> Registry:
    """Over its store, whose changes it follows; in memory where there is none."""
    if tenancy.store is None or tenancy.keyring is None:
        return Registry()
    registry = Registry(tenancy.store)
    registry.follow(tenancy.keyring.snapshot)
    tenancy.keyring.changed.append(registry.follow)
    return registry
