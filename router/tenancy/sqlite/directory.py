"""Steps on tenants, keys, adapters, public prefixes and the audit log. Each is done inside one transaction."""

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from router.tenancy.records import AdapterRecord, AuditRecord, KeyRecord, PrefixRecord, TenantRecord
from router.tenancy.sqlite import rows
from router.tenancy.sqlite.residents import HELD_SECONDS, full
from router.tenancy.store import Snapshot
from shared.errors import AlreadyExists, InvalidRequest, NotFound, RateLimited

MOST_PREFIXES = 256  # each is looked for in every prompt

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


def put_tenants(db: sqlite3.Connection, tenants: Sequence[TenantRecord], actor: str, now: float) -> None:
    """See Directory. What is equal already is no change."""
    for tenant in tenants:
        before = _tenant(db, tenant.name)
        kept = replace(tenant, uid=before.uid if before else secrets.token_hex(8))
        if kept != before:
            text = rows.tenant_to_text(kept)
            db.execute("INSERT OR REPLACE INTO tenants VALUES (?, ?)", (kept.name, text))
            db.execute("UPDATE meta SET value = 1 WHERE name = 'tenancy'")
            _changed(db, actor, "tenant.put", kept.name, text, now)


def delete_tenant(db: sqlite3.Connection, name: str, actor: str, now: float) -> None:
    """See Directory."""
    _delete(db, "DELETE FROM tenants WHERE name = ?", (name,), f"no tenant {name!r}")
    db.execute("DELETE FROM keys WHERE tenant = ?", (name,))
    db.execute("DELETE FROM adapters WHERE tenant = ?", (name,))
    _changed(db, actor, "tenant.delete", name, "", now)


def add_key(db: sqlite3.Connection, key: KeyRecord, actor: str, now: float) -> None:
    """See Directory."""
    _require_tenant(db, key.tenant)
    try:
        db.execute(f"INSERT INTO keys ({rows.KEY}) VALUES {_MARKS}", rows.key_to_row(key))
    except sqlite3.IntegrityError as error:
        raise AlreadyExists(f"the tenant {key.tenant!r} has a key {key.name!r}", param="name") from error
    scopes = ",".join(sorted(scope.value for scope in key.scopes))
    _changed(db, actor, "key.add", f"{key.tenant}/{key.name}", f"scopes {scopes}, prefix {key.prefix}", now)


def revoke_key(db: sqlite3.Connection, tenant: str, name: str, actor: str, now: float) -> None:
    """See Directory."""
    query = "DELETE FROM keys WHERE tenant = ? AND name = ?"
    _delete(db, query, (tenant, name), f"the tenant {tenant!r} has no key {name!r}")
    _changed(db, actor, "key.revoke", f"{tenant}/{name}", "", now)


def put_adapter(db: sqlite3.Connection, adapter: AdapterRecord, actor: str, now: float) -> None:
    """See Directory."""
    if adapter.tenant:
        _require_room(db, _require_tenant(db, adapter.tenant), adapter.canonical, now)
    db.execute(
        f"INSERT OR REPLACE INTO adapters ({rows.ADAPTER}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows.adapter_to_row(adapter)
    )
    detail = f"source {adapter.source}, digest {adapter.digest.hex()}, pinned {adapter.pinned}"
    _changed(db, actor, "adapter.put", adapter.canonical, detail, now)


def delete_adapter(db: sqlite3.Connection, tenant: str, name: str, actor: str, now: float) -> None:
    """See Directory."""
    query = "DELETE FROM adapters WHERE tenant = ? AND name = ?"
    _delete(db, query, (tenant, name), f"no adapter {name!r}")
    _changed(db, actor, "adapter.delete", f"{tenant}/{name}" if tenant else name, "", now)


def put_prefix(db: sqlite3.Connection, prefix: PrefixRecord, actor: str, now: float) -> None:
    """See Directory."""
    db.execute("INSERT OR REPLACE INTO prefixes VALUES (?, ?)", (prefix.name, rows.prefix_to_text(prefix)))
    (count,) = db.execute("SELECT COUNT(*) FROM prefixes").fetchone()
    if count > MOST_PREFIXES:
        raise InvalidRequest(f"there may be {MOST_PREFIXES} public prefixes", param="name")
    kind, size = ("system", len(prefix.system)) if prefix.system else ("text", len(prefix.text))
    detail = f"{size} characters of {kind}, models {','.join(prefix.models)}"
    _changed(db, actor, "prefix.put", prefix.name, detail, now)


def delete_prefix(db: sqlite3.Connection, name: str, actor: str, now: float) -> None:
    """See Directory."""
    _delete(db, "DELETE FROM prefixes WHERE name = ?", (name,), f"no public prefix {name!r}")
    _changed(db, actor, "prefix.delete", name, "", now)


def note(db: sqlite3.Connection, record: AuditRecord) -> None:
    """See Directory."""
    row = (record.time, record.actor, record.action, record.subject, record.detail)
    db.execute(f"INSERT INTO audit ({rows.AUDIT}) VALUES (?, ?, ?, ?, ?)", row)


def audit(db: sqlite3.Connection, since: float, limit: int) -> Sequence[AuditRecord]:
    """See Directory."""
    query = f"SELECT {rows.AUDIT} FROM audit WHERE time >= ? ORDER BY number LIMIT ?"
    return [rows.audit_from_row(row) for row in db.execute(query, (since, limit))]


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


def _changed(db: sqlite3.Connection, actor: str, action: str, subject: str, detail: str, now: float) -> None:
    """Whoever polls the revision sees it; whoever reads the audit log, too."""
    db.execute("UPDATE meta SET value = value + 1 WHERE name = 'revision'")
    note(db, AuditRecord(time=now, actor=actor, action=action, subject=subject, detail=detail))
