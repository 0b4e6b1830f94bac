"""Salts of prefix caches: who has another salt finds nothing of what was computed under this one, nor can tell that it was.

A scope's salt is an HMAC under the store's secret, so that nobody who knows tenants' names can make one. What a client gives as its own
is nested under its tenant's: two of a tenant's users may be kept apart, and none reaches another tenant.
"""

import hashlib
import hmac

from router.tenancy.records import OWN, TenantRecord
from shared.hashing import chain_seed

_BYTES = 16


def _hmac(key: bytes, kind: bytes, value: bytes) -> bytes:
    return hmac.new(key, kind + len(value).to_bytes(8, "little") + value, hashlib.sha256).digest()[:_BYTES]


def of_tenant(secret: bytes, tenant: TenantRecord) -> bytes:
    """The salt of its cache scope: its group's, or its own, which no later tenant of the same name has."""
    if tenant.cache_scope == OWN:
        return _hmac(secret, b"own", tenant.uid.encode())
    return _hmac(secret, b"group", tenant.cache_scope.encode())


def session(salt: bytes, revision: str, adapter: bytes, name: str) -> bytes:
    """What the requests that a client calls `name` have in common under one salt, model and adapter; nothing where it is empty."""
    if not name:
        return b""
    return _hmac(salt, b"session" + chain_seed(model_revision=revision, adapter_digest=adapter), name.encode())


def nested(salt: bytes, client: str) -> bytes:
    """The salt of what a client keeps apart under `client`; the tenant's own where that is empty."""
    return _hmac(salt, b"client", client.encode()) if client else salt
