"""What a tenant used in the last minute: token buckets to which each use comes back a minute after it was made.

So any minute has at most the limit, the whole limit may be used at once, and a tenant that waits is told exactly when enough is back.
Uses are kept by slices of SLICE_MS; one comes back up to a slice late, never early. Output tokens are *held* from a request's start, and
become used as they are made, so that they come back a minute after that.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from router.tenancy.rates import SLICE_MS, WINDOW_MS, Rate, Rates
from router.tenancy.records import Limits

REQUESTS, PROMPT, OUTPUT = range(3)  # kinds
NAMES = ("requests_per_minute", "prompt_tokens_per_minute", "output_tokens_per_minute")  # of kinds, in Limits
SLOTS = WINDOW_MS // SLICE_MS + 16  # more than the slices of a minute: whose slot is taken over has come back

_SPEND = """
INSERT INTO spent VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET
amount = CASE WHEN slice = excluded.slice THEN amount + excluded.amount ELSE excluded.amount END, slice = excluded.slice
"""
_SUMS = "SELECT kind, SUM(amount), MAX(slice) FROM spent WHERE tenant = ? AND slice BETWEEN ? AND ? GROUP BY kind"
_SLICES = "SELECT slice, amount FROM spent WHERE tenant = ? AND kind = ? AND slice BETWEEN ? AND ? ORDER BY slice"
_LIVE = "SELECT COUNT(*), COALESCE(SUM(held), 0) FROM leases WHERE tenant = ? AND expires > ?"


def slice_of(now: float) -> int:
    """The slice in which a use of now is kept."""
    return int(now * 1000) // SLICE_MS


def _window(now: float) -> tuple[int, int]:
    """The first and the last slice that count. Those of the future do too, if a clock was set back by no more than seconds."""
    ms = int(now * 1000)
    return (ms - WINDOW_MS) // SLICE_MS, ms // SLICE_MS + 15


def _back_in(slice_: int, now: float) -> float:
    """Seconds until what was used in a slice has come back."""
    return max(0.0, ((slice_ + 1) * SLICE_MS + WINDOW_MS) / 1000 - now)


def spend(db: sqlite3.Connection, tenant: str, kind: int, slice_: int, amount: int) -> None:
    """Count a use."""
    if amount:
        db.execute(_SPEND, (tenant, kind, slice_ % SLOTS, slice_, amount))


def unspend(db: sqlite3.Connection, tenant: str, kind: int, slice_: int, amount: int) -> None:
    """Take back a use, unless it has come back by itself."""
    query = "UPDATE spent SET amount = MAX(0, amount - ?) WHERE tenant = ? AND kind = ? AND slot = ? AND slice = ?"
    db.execute(query, (amount, tenant, kind, slice_ % SLOTS, slice_))


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A tenant's uses by kind, each with the last slice that has one; `held` output tokens of the `live` requests."""

    used: Mapping[int, tuple[int, int]]
    live: int
    held: int

    def taken(self, kind: int) -> int:
        """What is not free."""
        used, _ = self.used.get(kind, (0, 0))
        return used + (self.held if kind == OUTPUT else 0)


def standing(db: sqlite3.Connection, tenant: str, now: float) -> Standing:
    """As it is now."""
    used = {kind: (amount, last) for kind, amount, last in db.execute(_SUMS, (tenant, *_window(now)))}
    live, held = db.execute(_LIVE, (tenant, now)).fetchone()
    return Standing(used=used, live=live, held=held)


def bounds(limits: Limits) -> Mapping[int, int]:
    """The limits a minute, by kind, of those that there are."""
    given = (limits.requests_per_minute, limits.prompt_tokens_per_minute, limits.output_tokens_per_minute)
    return {kind: limit for kind, limit in enumerate(given) if limit is not None}


def rates(limits: Limits, now: float, stands: Standing, more: Mapping[int, int]) -> Rates:
    """As they stand once `more` is used as well."""
    told: dict[int, Rate] = {}
    for kind, limit in bounds(limits).items():
        _, last = stands.used.get(kind, (0, 0))
        taken = stands.taken(kind) + more.get(kind, 0)
        newest = slice_of(now) if more.get(kind) or (kind == OUTPUT and stands.held) else last
        reset = _back_in(newest, now) if taken else 0.0
        told[kind] = Rate(limit=limit, remaining=max(0, limit - taken), reset=reset)
    return Rates(requests=told.get(REQUESTS), prompt_tokens=told.get(PROMPT), output_tokens=told.get(OUTPUT))


def wait(db: sqlite3.Connection, tenant: str, kind: int, now: float, excess: int) -> float | None:
    """Seconds until `excess` of what was used has come back; None where less than that was used (the rest is held)."""
    for slice_, amount in db.execute(_SLICES, (tenant, kind, *_window(now))):
        excess -= amount
        if excess <= 0:
            return _back_in(slice_, now)
    return None
