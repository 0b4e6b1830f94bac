"""What /metrics shows: the metrics of this process, or of all processes of a router."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric


class Collector(Protocol):
    """What Prometheus' encoders write."""

    def collect(self) -> Iterable[Metric]:
        """Families and their samples."""


class Exposition(Protocol):
    """Metrics for a scraper. `tenants` is whether it may see those that name tenants."""

    async def shown(self, tenants: bool) -> Collector:
        """As they stand now."""


class Both:
    """What several registries collect."""

    def __init__(self, *registries: CollectorRegistry):
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """All metrics of each."""
        return chain.from_iterable(registry.collect() for registry in self._registries)


class Alone:
    """Implements Exposition for one process: `registry` for all, `named` for those who may see tenants' names."""

    def __init__(self, registry: CollectorRegistry, named: CollectorRegistry):
        self._registry = registry
        self._named = named

    async def shown(self, tenants: bool) -> Collector:
        """See Exposition."""
        return Both(self._registry, self._named) if tenants else self._registry
