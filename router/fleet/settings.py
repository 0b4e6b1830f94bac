"""The times and bounds of the stream to a worker, in seconds (DESIGN section 6)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """`tick` is how often liveness is looked at; where that took over `stall_after`, the router itself stood still.

    `connect_timeout` bounds the wait for Welcome, `fetch_timeout` that for a tokenizer or a first view of a worker's cache.
    `settle_within` is how long a router that starts waits for all its workers before it is ready with some. `breaker_failures` in a row
    open a worker's breaker for `breaker_pause`, and twice as long each time until it answers again, up to `breaker_pause_most`.
    """

    ping_interval: float = 1.0
    credit_ttl: float = 1.0
    suspect_after: float = 2.0
    dead_after: float = 5.0
    hung_after: float = 5.0
    hung_steps: float = 20.0
    tick: float = 0.25
    stall_after: float = 1.0
    connect_timeout: float = 10.0
    fetch_timeout: float = 60.0
    settle_within: float = 5.0
    backoff_first: float = 0.1
    backoff_most: float = 2.0
    breaker_failures: int = 3
    breaker_pause: float = 1.0
    breaker_pause_most: float = 30.0
