"""Where each adapter is, as metrics: by name for as many as a scrape may hold, and counted for all."""

from collections import Counter
from collections.abc import Mapping

from prometheus_client import Gauge

from shared.types import AdapterInfo, AdapterLevel

MOST_NAMED = 1_000  # adapters with a series of their own; those in memory before those that are known by name alone


class AdapterMetrics:
    """`levels` has the labels adapter and level, `counts` level alone, `host` none."""

    def __init__(self, levels: Gauge, counts: Gauge, host: Gauge):
        self._levels = levels
        self._counts = {level: counts.labels(level.value) for level in AdapterLevel}
        self._host = host
        self._known: dict[str, AdapterLevel] = {}
        self._named: dict[str, AdapterLevel] = {}
        self._at: Counter[AdapterLevel] = Counter()

    def tell(self, infos: Mapping[str, AdapterInfo | None], host_bytes: int) -> None:
        """What these names are now; None where there is none any more."""
        for name, info in infos.items():
            self._count(name, info)
            self._name(name, None if info is None else info.level)
        for level, gauge in self._counts.items():
            gauge.set(self._at[level])
        self._host.set(host_bytes)

    def _count(self, name: str, info: AdapterInfo | None) -> None:
        before = self._known.pop(name, None)
        if before is not None:
            self._at[before] -= 1
        if info is not None:
            self._known[name] = info.level
            self._at[info.level] += 1

    def _name(self, name: str, level: AdapterLevel | None) -> None:
        if name in self._named:
            self._unname(name)
        if level is None or not self._room(level):
            return
        self._named[name] = level
        self._levels.labels(name, level.value).set(1)

    def _room(self, level: AdapterLevel) -> bool:
        """Whether one more may have its series; one in memory takes that of one that is not."""
        if len(self._named) < MOST_NAMED:
            return True
        if level is AdapterLevel.SOURCE:
            return False
        idle = next((name for name, at in self._named.items() if at is AdapterLevel.SOURCE), None)
        if idle is not None:
            self._unname(idle)
        return idle is not None

    def _unname(self, name: str) -> None:
        self._levels.remove(name, self._named.pop(name).value)
