"""Bounds of the router's inside. A default is written here and nowhere else."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchSettings:
    """`max_queued` and `max_queued_per_tenant` are requests a pool.

    `max_unread` bounds the tokens that wait for a reader: some minutes of a fast stream. A reader further behind is cut
    off. `max_resubmits` is how often a request that workers reject is given to another; of all requests, `retry_share` may be, and
    `retry_burst` more at once. `max_moves` is how often one whose worker was lost, stopped or failed on it goes on elsewhere, and
    `resume_wait` how many seconds it waits where nobody else is there. With `resume` "exact" it goes on only where the same numbers
    come out; with "any" elsewhere too, and then says so. `coalesce` bounds the seconds that tokens of busy streams wait to go together
    (router.dispatch.pace).
    """

    policy: str = "cost"
    max_queued: int = 1_024
    max_queued_per_tenant: int = 256
    max_unread: int = 16_384
    max_resubmits: int = 2
    retry_share: float = 0.2
    retry_burst: float = 32.0
    max_moves: int = 16
    resume_wait: float = 10.0
    resume: Literal["any", "exact"] = "any"
    coalesce: float = 0.02
