"""Steps on reservations and the ledger. Each is done inside one transaction."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from router.tenancy.rates import Rates
from router.tenancy.sqlite import rows, spending
from router.tenancy.sqlite.residents import HELD_SECONDS, full
from router.tenancy.sqlite.spending import OUTPUT, PROMPT, REQUESTS, Standing
from router.tenancy.store import Granted, Refused, Renewal, Settlement, UsageLine, UsageQuery, UsageTotal, Wanted

LEASE_SECONDS = 10.0  # after its last renewal, a reservation is taken for lost
SWEPT = 500  # reservations of one step

_LEASE = "INSERT OR IGNORE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHARGE = f"INSERT OR IGNORE INTO ledger ({rows.CHARGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class _Lease:
    tenant: str
    key: str
    model: str
    adapter: str
    slice: int
    started: float
    prompt: int
    cached: int
    output: int
    held: int | None
    by_request: int
    by_prompt: int


_FIELDS = ", ".join(_Lease.__dataclass_fields__)


def _lease(db: sqlite3.Connection, charge_id: str) -> _Lease | None:
    row = db.execute(f"SELECT {_FIELDS} FROM leases WHERE id = ?", (charge_id,)).fetchone()
    return _Lease(*row) if row else None


def reserve(db: sqlite3.Connection, wanted: Wanted, now: float) -> Granted | Refused:
    """See Books. Output tokens are held in full, or as many as a minute may have where that is less."""
    if wanted.limits.free:
        _lend(db, wanted, {}, now)
        return Granted(rates=Rates())
    stands = spending.standing(db, wanted.tenant, now)
    if db.execute("SELECT 1 FROM leases WHERE id = ?", (wanted.charge_id,)).fetchone():
        return Granted(rates=spending.rates(wanted.limits, now, stands, {}))
    more = _more(wanted)
    refused = _refusal(db, wanted, more, stands, now)
    if refused is not None:
        return refused
    slice_ = spending.slice_of(now)
    for kind in more.keys() - {OUTPUT}:
        spending.spend(db, wanted.tenant, kind, slice_, more[kind])
    _lend(db, wanted, more, now)
    return Granted(rates=spending.rates(wanted.limits, now, stands, more))


def _lend(db: sqlite3.Connection, wanted: Wanted, more: Mapping[int, int], now: float) -> None:
    """The lease, unless it is there already."""
    named = (wanted.charge_id, wanted.tenant, wanted.key, wanted.model, wanted.adapter)
    times = (spending.slice_of(now), now, now, now + LEASE_SECONDS)
    counted = (more.get(OUTPUT), more.get(REQUESTS, 0), more.get(PROMPT, 0))
    db.execute(_LEASE, (*named, *times, wanted.prompt_tokens, 0, 0, *counted))


def _more(wanted: Wanted) -> Mapping[int, int]:
    """What is counted, by kind, of those that have a limit. A request that wants more than a whole minute takes all of it, and no more."""
    costs = (1, wanted.prompt_tokens, wanted.output_tokens)
    return {kind: min(costs[kind], limit) for kind, limit in spending.bounds(wanted.limits).items()}


def _refusal(
    db: sqlite3.Connection, wanted: Wanted, more: Mapping[int, int], stands: Standing, now: float
) -> Refused | None:
    """The limit that keeps it out longest; None where none does."""
    waits: dict[str, float] = {}
    for kind, limit in spending.bounds(wanted.limits).items():
        excess = stands.taken(kind) + more[kind] - limit
        if excess > 0:
            back = spending.wait(db, wanted.tenant, kind, now, excess)
            waits[spending.NAMES[kind]] = HELD_SECONDS if back is None else back
    most = wanted.limits.concurrent_requests
    if most is not None and stands.live >= most:
        waits["concurrent_requests"] = HELD_SECONDS
    if full(db, wanted.tenant, wanted.adapter, wanted.limits.resident_adapters, now):
        waits["resident_adapters"] = HELD_SECONDS
    if not waits:
        return None
    limit_name = max(waits, key=lambda name: waits[name])
    told = spending.rates(wanted.limits, now, stands, {})
    return Refused(rates=told, limit=limit_name, retry_after=waits[limit_name])


def _use(db: sqlite3.Connection, lease: _Lease, output: int, now: float) -> int:
    """Count the output tokens that are new; how many there are in all."""
    made = max(output, lease.output)
    if lease.held is not None:
        spending.spend(db, lease.tenant, OUTPUT, spending.slice_of(now), made - lease.output)
    return made


def renew(db: sqlite3.Connection, renewals: Sequence[Renewal], now: float) -> None:
    """See Books."""
    query = "UPDATE leases SET renewed = ?, expires = ?, output = ?, cached = ?, held = MAX(0, held - ?) WHERE id = ?"
    for renewal in renewals:
        lease = _lease(db, renewal.charge_id)
        if lease is not None:
            made = _use(db, lease, renewal.output_tokens, now)
            cached = max(lease.cached, renewal.cached_tokens)
            new = made - lease.output
            db.execute(query, (now, now + LEASE_SECONDS, made, cached, new, renewal.charge_id))


def settle(db: sqlite3.Connection, settlement: Settlement, now: float) -> bool:
    """See Books."""
    lease = _lease(db, settlement.charge_id)
    if lease is None:
        return False
    db.execute("DELETE FROM leases WHERE id = ?", (settlement.charge_id,))
    _use(db, lease, settlement.output_tokens, now)
    named = (settlement.charge_id, lease.tenant, lease.key, lease.model, lease.adapter)
    tokens = (settlement.prompt_tokens, settlement.cached_tokens, settlement.output_tokens)
    row = (*named, *tokens, settlement.finish, settlement.worker, lease.started, now)
    return db.execute(_CHARGE, row).rowcount == 1


def abandon(db: sqlite3.Connection, charge_id: str) -> bool:
    """See Books."""
    lease = _lease(db, charge_id)
    if lease is None:
        return False
    db.execute("DELETE FROM leases WHERE id = ?", (charge_id,))
    if lease.by_request:
        spending.unspend(db, lease.tenant, REQUESTS, lease.slice, 1)
    if lease.by_prompt:
        spending.unspend(db, lease.tenant, PROMPT, lease.slice, lease.by_prompt)
    return True


def sweep(db: sqlite3.Connection, now: float) -> int:
    """See Books. No more than SWEPT."""
    query = f"SELECT id, {_FIELDS} FROM leases WHERE expires <= ? ORDER BY expires LIMIT ?"
    lost = [(charge_id, _Lease(*row)) for charge_id, *row in db.execute(query, (now, SWEPT)).fetchall()]
    for charge_id, lease in lost:
        end = Settlement(
            charge_id=charge_id,
            prompt_tokens=lease.prompt,
            cached_tokens=lease.cached,
            output_tokens=lease.output,
            finish="lost",
            worker="",
        )
        settle(db, end, now)
    return len(lost)


_WHERE = "time >= ?1 AND time < ?2 AND (?3 = '' OR tenant = ?3) AND (?4 = '' OR key = ?4) AND (?5 = '' OR model = ?5)"


def _values(query: UsageQuery) -> tuple[float, float, str, str, str]:
    return (query.since, query.until, query.tenant, query.key, query.model)


def usage(db: sqlite3.Connection, query: UsageQuery) -> Sequence[UsageLine]:
    """See Books."""
    text = f"SELECT number, {rows.CHARGE} FROM ledger WHERE {_WHERE} AND number > ?6 ORDER BY number LIMIT ?7"
    found = db.execute(text, (*_values(query), query.after, query.limit))
    return [UsageLine(number=number, charge=rows.charge_from_row(tuple(row))) for number, *row in found]


def totals(db: sqlite3.Connection, query: UsageQuery) -> Sequence[UsageTotal]:
    """See Books."""
    groups = "tenant, key, model, adapter"
    sums = "COUNT(*), SUM(prompt_tokens), SUM(cached_tokens), SUM(output_tokens)"
    text = f"SELECT {groups}, {sums} FROM ledger WHERE {_WHERE} GROUP BY {groups} ORDER BY {groups}"
    names = UsageTotal.__dataclass_fields__
    return [UsageTotal(**dict(zip(names, row, strict=True))) for row in db.execute(text, _values(query))]
