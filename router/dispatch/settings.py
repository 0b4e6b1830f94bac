"""Bounds of the router's inside. A default is written here and nowhere else."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchSettings:
    """`max_queued` and `max_queued_per_tenant` are requests a pool.

    `max_unread` bounds the pieces that wait for a reader: at one a token, some minutes of a fast stream. A reader further behind is cut
    off. `max_resubmits` is how often a request is given to another worker.
    """

    policy: str = "least_loaded"
    max_queued: int = 1_024
    max_queued_per_tenant: int = 256
    max_unread: int = 16_384
    max_resubmits: int = 2
