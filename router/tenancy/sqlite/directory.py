"""Steps on tenants, keys, adapters, public prefixes and the audit log. Each is done inside one transaction."""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from router.tenancy.records import AdapterRecord, AuditRecord, KeyRecord, PrefixRecord, TenantRecord, etag
from router.tenancy.sqlite import rows
from router.tenancy.sqlite.residents import HELD_SECONDS, full
from router.tenancy.store import AuditLine, AuditQuery, Snapshot
from shared.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, RateLimited
from shared.redact import redact

MOST_PREFIXES = 256  # each is looked for in every prompt

_ANYTHING: Mapping[str, str] = MappingProxyType({})
_MARKS = "(?, ?, ?, ?, ?, ?, ?, ?)"


def revision(db: sqlite3.Connection) -> int:
    """See Directory."""
    return int(_meta(db, "revision"))


def snapshot(db: sqlite3.Connection) -> Snapshot:
    """See Directory."""
    return Snapshot(
        revision=revision(db),
        tenancy=bool(_meta(db, "tenancy")),
        secret=_meta(db, "secret"),
        tenants=tuple(rows.tenant_from_text(text) for (text,) in db.execute("SELECT body FROM tenants ORDER BY name")),
        keys=tuple(map(rows.key_from_row, db.execute(f"SELECT {rows.KEY} FROM keys ORDER BY tenant, name"))),
        adapters=tuple(
            map(rows.adapter_from_row, db.execute(f"SELECT {rows.ADAPTER} FROM adapters ORDER BY tenant, name"))
        ),
        prefixes=tuple(
            rows.prefix_from_text(text) for (text,) in db.execute("SELECT body FROM prefixes ORDER BY name")
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class By:
    """Who changes something, from where, and when."""

    actor: str
    now: float
    origin: str = ""


def put_tenants(
    db: sqlite3.Connection, tenants: Sequence[TenantRecord], by: By, expected: Mapping[str, str] = _ANYTHING
) -> None:
    """See Directory. What is equal already is no change."""
    for tenant in tenants:
        before = _tenant(db, tenant.name)
        _require_unchanged(tenant.name, before, expected)
        kept = replace(tenant, uid=before.uid if before else secrets.token_hex(8))
        if kept != before:
            text = rows.tenant_to_text(kept)
            db.execute("INSERT OR REPLACE INTO tenants VALUES (?, ?)", (kept.name, text))
            db.execute("UPDATE meta SET value = 1 WHERE name = 'tenancy'")
            _changed(db, by, "tenant.put", kept.name, text, rows.tenant_to_text(before) if before else "")


def delete_tenant(db: sqlite3.Connection, name: str, by: By, expected: Mapping[str, str] = _ANYTHING) -> None:
    """See Directory."""
    before = _tenant(db, name)
    if before is not None:
        _require_unchanged(name, before, expected)
    _delete(db, "DELETE FROM tenants WHERE name = ?", (name,), f"no tenant {name!r}")
    db.execute("DELETE FROM keys WHERE tenant = ?", (name,))
    db.execute("DELETE FROM adapters WHERE tenant = ?", (name,))
    _changed(db, by, "tenant.delete", name, before=rows.tenant_to_text(before) if before else "")


def add_key(db: sqlite3.Connection, key: KeyRecord, by: By) -> None:
    """See Directory."""
    _require_tenant(db, key.tenant)
    try:
        db.execute(f"INSERT INTO keys ({rows.KEY}) VALUES {_MARKS}", rows.key_to_row(key))
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"the tenant {key.tenant!r} has a key {key.name!r}", param="name") from error
    _changed(db, by, "key.add", f"{key.tenant}/{key.name}", _shown(key))


def _shown(key: KeyRecord) -> str:
    """A key in the audit log, without its secret's hash."""
    scopes = ",".join(sorted(scope.value for scope in key.scopes))
    return f"scopes {scopes}, prefix {key.prefix}, " + (
        "never expires" if key.expires is None else f"expires {key.expires:.0f}"
    )


def revoke_key(db: sqlite3.Connection, tenant: str, name: str, by: By) -> None:
    """See Directory."""
    found = db.execute(f"SELECT {rows.KEY} FROM keys WHERE tenant = ? AND name = ?", (tenant, name)).fetchone()
    query = "DELETE FROM keys WHERE tenant = ? AND name = ?"
    _delete(db, query, (tenant, name), f"the tenant {tenant!r} has no key {name!r}")
    _changed(db, by, "key.revoke", f"{tenant}/{name}", before=_shown(rows.key_from_row(found)))


def put_adapter(db: sqlite3.Connection, adapter: AdapterRecord, actor: str, now: float) -> None:
    """See Directory."""
    if adapter.tenant:
        _require_room(db, _require_tenant(db, adapter.tenant), adapter.canonical, now)
    before = _adapter(db, adapter.tenant, adapter.name)
    db.execute(
        f"INSERT OR REPLACE INTO adapters ({rows.ADAPTER}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows.adapter_to_row(adapter)
    )
    _changed(db, By(actor=actor, now=now), "adapter.put", adapter.canonical, _version(adapter), _version(before))


def delete_adapter(db: sqlite3.Connection, tenant: str, name: str, actor: str, now: float) -> None:
    """See Directory."""
    before = _adapter(db, tenant, name)
    query = "DELETE FROM adapters WHERE tenant = ? AND name = ?"
    _delete(db, query, (tenant, name), f"no adapter {name!r}")
    subject = f"{tenant}/{name}" if tenant else name
    _changed(db, By(actor=actor, now=now), "adapter.delete", subject, before=_version(before))


def _adapter(db: sqlite3.Connection, tenant: str, name: str) -> AdapterRecord | None:
    query = f"SELECT {rows.ADAPTER} FROM adapters WHERE tenant = ? AND name = ?"
    row = db.execute(query, (tenant, name)).fetchone()
    return rows.adapter_from_row(row) if row else None


def _version(adapter: AdapterRecord | None) -> str:
    """An adapter in the audit log. What the adapter directory has under a name is followed as it changes, and has no one digest."""
    if adapter is None:
        return ""
    version = f"digest {adapter.digest.hex()}" if adapter.digest else "whichever version is there"
    return f"source {adapter.source}, {version}, {'pinned' if adapter.pinned else 'not pinned'}"


def put_prefix(db: sqlite3.Connection, prefix: PrefixRecord, by: By) -> None:
    """See Directory."""
    before = _prefix(db, prefix.name)
    db.execute("INSERT OR REPLACE INTO prefixes VALUES (?, ?)", (prefix.name, rows.prefix_to_text(prefix)))
    (count,) = db.execute("SELECT COUNT(*) FROM prefixes").fetchone()
    if count > MOST_PREFIXES:
        raise InvalidRequest(f"there may be {MOST_PREFIXES} public prefixes", param="name")
    _changed(db, by, "prefix.put", prefix.name, _size(prefix), _size(before))


def delete_prefix(db: sqlite3.Connection, name: str, by: By) -> None:
    """See Directory."""
    before = _prefix(db, name)
    _delete(db, "DELETE FROM prefixes WHERE name = ?", (name,), f"no public prefix {name!r}")
    _changed(db, by, "prefix.delete", name, before=_size(before))


def _prefix(db: sqlite3.Connection, name: str) -> PrefixRecord | None:
    row = db.execute("SELECT body FROM prefixes WHERE name = ?", (name,)).fetchone()
    return rows.prefix_from_text(row[0]) if row else None


def _size(prefix: PrefixRecord | None) -> str:
    """A prefix in the audit log, without its text."""
    if prefix is None:
        return ""
    kind, size = ("system", len(prefix.system)) if prefix.system else ("text", len(prefix.text))
    return f"{size} characters of {kind}, models {','.join(prefix.models)}"


def note(db: sqlite3.Connection, record: AuditRecord) -> None:
    """See Directory. What somebody wrote where no key belongs (a label, a name) is taken out."""
    values = (getattr(record, name) for name in rows.AUDIT.split(", "))
    row = [redact(value) if isinstance(value, str) else value for value in values]
    db.execute(f"INSERT INTO audit ({rows.AUDIT}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def audit(db: sqlite3.Connection, since: float, limit: int) -> Sequence[AuditRecord]:
    """See Directory."""
    query = f"SELECT {rows.AUDIT} FROM audit WHERE time >= ? ORDER BY number LIMIT ?"
    return [rows.audit_from_row(row) for row in db.execute(query, (since, limit))]


_LINES = """
time >= ?1 AND time < ?2 AND (?3 = '' OR actor = ?3) AND (?4 = '' OR action = ?4 OR substr(action, 1, length(?4) + 1) = ?4 || '.')
AND (?5 = '' OR subject = ?5 OR substr(subject, 1, length(?5) + 1) = ?5 || '/') AND number > ?6 ORDER BY number LIMIT ?7
"""


def audit_lines(db: sqlite3.Connection, query: AuditQuery) -> Sequence[AuditLine]:
    """See Directory."""
    values = (query.since, query.until, query.actor, query.action, query.subject, query.after, query.limit)
    found = db.execute(f"SELECT number, {rows.AUDIT} FROM audit WHERE {_LINES}", values)
    return [AuditLine(number=number, record=rows.audit_from_row(tuple(row))) for number, *row in found]


def _meta(db: sqlite3.Connection, name: str) -> bytes:
    (value,) = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return value  # type: ignore[no-any-return]


def _tenant(db: sqlite3.Connection, name: str) -> TenantRecord | None:
    row = db.execute("SELECT body FROM tenants WHERE name = ?", (name,)).fetchone()
    return rows.tenant_from_text(row[0]) if row else None


def _require_tenant(db: sqlite3.Connection, name: str) -> TenantRecord:
    found = _tenant(db, name)
    if found is None:
        raise NotFound(f"no tenant {name!r}", param="tenant")
    return found


def _require_room(db: sqlite3.Connection, tenant: TenantRecord, adapter: str, now: float) -> None:
    most = tenant.limits.resident_adapters
    if full(db, tenant.name, adapter, most, now):
        message = (
            f"the limit of {most} resident adapters is reached: unload one, or wait until none of its requests runs"
        )
        raise RateLimited(message, retry_after=HELD_SECONDS)


def _delete(db: sqlite3.Connection, query: str, values: tuple[str, ...], missing: str) -> None:
    if db.execute(query, values).rowcount == 0:
        raise NotFound(missing)


def _require_unchanged(name: str, kept: TenantRecord | None, expected: Mapping[str, str]) -> None:
    """Raises Conflict where `expected` says that another state was meant."""
    if expected.get(name) not in (None, etag(kept) if kept else ""):
        said = f"the tenant {name!r} has changed since it was read" if kept else f"there is no tenant {name!r}"
        raise Conflict(said if expected[name] else f"there is a tenant {name!r} already", param="etag")


def _changed(db: sqlite3.Connection, by: By, action: str, subject: str, detail: str = "", before: str = "") -> None:
    """Whoever polls the revision sees it; whoever reads the audit log, too."""
    db.execute("UPDATE meta SET value = value + 1 WHERE name = 'revision'")
    record = AuditRecord(
        time=by.now, actor=by.actor, origin=by.origin, action=action, subject=subject, detail=detail, before=before
    )
    note(db, record)
