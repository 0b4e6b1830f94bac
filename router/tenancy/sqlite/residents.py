"""Which adapters count for a tenant as resident: those that it loaded by a call, and those that a request of it runs on.

What merely stays in memory after its last request does not: it makes room for whatever is wanted next.
"""

import sqlite3

HELD_SECONDS = 1.0  # when to ask again, where what is missing is held by requests that run: none knows when they end

_LOADED = "SELECT name FROM adapters WHERE tenant = ?"
_USED = "SELECT DISTINCT adapter FROM leases WHERE tenant = ? AND expires > ? AND adapter != ''"


def residents(db: sqlite3.Connection, tenant: str, now: float) -> set[str]:
    """Canonical names; a shared adapter counts while the tenant uses it."""
    loaded = {f"{tenant}/{name}" for (name,) in db.execute(_LOADED, (tenant,))}
    return loaded | {name for (name,) in db.execute(_USED, (tenant, now))}


def full(db: sqlite3.Connection, tenant: str, adapter: str, limit: int | None, now: float) -> bool:
    """Whether one more would be beyond the limit; an adapter that counts already is none more."""
    if limit is None or not adapter:
        return False
    there = residents(db, tenant, now)
    return adapter not in there and len(there) >= limit
