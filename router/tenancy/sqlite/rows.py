"""Records to rows and back. A tenant is one JSON text, and so is a public prefix: their fields can grow."""

import json
from dataclasses import asdict
from typing import Any

from router.tenancy.records import (
    AdapterRecord,
    AuditRecord,
    Charge,
    KeyRecord,
    Limits,
    PrefixRecord,
    Scope,
    TenantRecord,
)

Row = tuple[Any, ...]

KEY = "prefix, tenant, name, salt, digest, scopes, created, expires"
ADAPTER = "tenant, name, source, digest, pinned, created, model"
CHARGE = "id, tenant, key, model, adapter, prompt_tokens, cached_tokens, output_tokens, finish, worker, started, time"
AUDIT = "time, actor, action, subject, detail, origin, before"


def tenant_to_text(tenant: TenantRecord) -> str:
    """All of it."""
    fields = {name: getattr(tenant, name) for name in TenantRecord.__dataclass_fields__}
    return json.dumps({**fields, "limits": asdict(tenant.limits), "labels": dict(tenant.labels)})


def tenant_from_text(text: str) -> TenantRecord:
    """As it was written; earlier versions took true and 1.0 for whole numbers."""
    fields = json.loads(text)
    fields |= {"weight": +fields["weight"], "top_class": int(fields["top_class"])}
    patterns = {name: tuple(fields[name]) for name in ("models", "adapters")}
    return TenantRecord(**{**fields, **patterns, "limits": Limits(**fields["limits"])})


def key_to_row(key: KeyRecord) -> Row:
    """In the order of KEY."""
    scopes = ",".join(sorted(scope.value for scope in key.scopes))
    return (key.prefix, key.tenant, key.name, key.salt, key.digest, scopes, key.created, key.expires)


def key_from_row(row: Row) -> KeyRecord:
    """From the order of KEY."""
    prefix, tenant, name, salt, digest, scopes, created, expires = row
    return KeyRecord(
        prefix=prefix,
        tenant=tenant,
        name=name,
        salt=salt,
        digest=digest,
        scopes=frozenset(map(Scope, scopes.split(","))),
        created=created,
        expires=expires,
    )


def adapter_to_row(adapter: AdapterRecord) -> Row:
    """In the order of ADAPTER."""
    record = adapter
    return (record.tenant, record.name, record.source, record.digest, int(record.pinned), record.created, record.model)


def adapter_from_row(row: Row) -> AdapterRecord:
    """From the order of ADAPTER."""
    fields = dict(zip(ADAPTER.split(", "), row, strict=True))
    return AdapterRecord(**{**fields, "pinned": bool(fields["pinned"])})


def prefix_to_text(prefix: PrefixRecord) -> str:
    """All of it."""
    return json.dumps(asdict(prefix))


def prefix_from_text(text: str) -> PrefixRecord:
    """As it was written."""
    fields = json.loads(text)
    return PrefixRecord(**{**fields, "models": tuple(fields["models"])})


def charge_from_row(row: Row) -> Charge:
    """From the order of CHARGE."""
    return Charge(**dict(zip(CHARGE.split(", "), row, strict=True)))


def audit_from_row(row: Row) -> AuditRecord:
    """From the order of AUDIT."""
    return AuditRecord(**dict(zip(AUDIT.split(", "), row, strict=True)))
