"""API keys: made, taken apart, compared. A key is octk-PREFIX-SECRET; the store has the prefix, a salt, and a hash of the secret.

A secret has 256 random bits, so that one SHA-256 is enough to hide it; a slow hash protects what people choose.
"""

import hashlib
import hmac
import secrets
import string
from dataclasses import dataclass

from router.tenancy.records import KeyRecord, Scope, is_number
from shared.errors import InvalidRequest
from shared.redact import KEY, KEY_MARK

_ALPHABET = string.digits + string.ascii_letters
_PREFIX = 12  # characters, of 62
_SECRET = 43  # 256 bits

LAST_EXPIRY = 253_402_300_799.0  # Unix seconds: the last second of the year 9999


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    """A key that was made now. `text` is the key itself, to be shown once and kept nowhere."""

    text: str
    record: KeyRecord

    def __repr__(self) -> str:
        return f"NewKey(record={self.record!r})"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()


def new_key(*, tenant: str, name: str, scopes: frozenset[Scope], now: float, expires: float | None = None) -> NewKey:
    """A fresh key. Raises InvalidRequest where the record would be wrong, or nobody could write down when it expires."""
    if expires is not None and not is_number(expires, least=0.0, most=LAST_EXPIRY):
        raise InvalidRequest("expires must be before the year 10000; leave it out for never", param="expires")
    prefix, secret, salt = _random(_PREFIX), _random(_SECRET), secrets.token_bytes(16)
    record = KeyRecord(
        tenant=tenant,
        name=name,
        prefix=prefix,
        salt=salt,
        digest=_digest(salt, secret),
        scopes=scopes,
        created=now,
        expires=expires,
    )
    return NewKey(text=f"{KEY_MARK}{prefix}-{secret}", record=record)


def parts(text: str) -> tuple[str, str] | None:
    """Prefix and secret; None where `text` has not the form of a key."""
    if not KEY.fullmatch(text):
        return None
    _, prefix, secret = text.split("-")
    return prefix, secret


def matches(secret: str, record: KeyRecord) -> bool:
    """Whether it is this key's; takes as long whether it is or not."""
    return hmac.compare_digest(_digest(record.salt, secret), record.digest)


NOBODY = KeyRecord(tenant="nobody", name="nobody", prefix="", salt=bytes(16), digest=bytes(32))
