"""Each adapter's requests, as a Load tells them."""

from collections.abc import Sequence

from shared.types import AdapterLoad
from shared.wire.adapters import MOST_LOADS
from worker.events import AdapterStats

RECENT_S = 60.0


def loads_of(stats: Sequence[AdapterStats], now: float) -> tuple[AdapterLoad, ...]:
    """Those with requests now or lately; where they are too many for a frame, those with most."""
    recent = [one for one in stats if one.running + one.waiting or now - one.idle_since < RECENT_S]
    if len(recent) > MOST_LOADS:
        recent = sorted(recent, key=lambda one: (-one.running - one.waiting, -one.idle_since))[:MOST_LOADS]
    return tuple(
        AdapterLoad(
            digest=one.digest,
            running=one.running,
            waiting=one.waiting,
            idle_ms=0 if one.running + one.waiting else max(0, int(1000 * (now - one.idle_since))),
        )
        for one in recent
    )
