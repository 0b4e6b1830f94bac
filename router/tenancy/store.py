"""What is kept, and shared by all routers. Every operation is one atomic step, so that any store that has transactions or scripts will do.

Operations raise OctavoErrors only: NotFound, AlreadyExists, InvalidRequest; Unavailable where the store cannot be reached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.tenancy.rates import Rates
from router.tenancy.records import (
    NOTHING,
    AdapterRecord,
    AuditRecord,
    Charge,
    KeyRecord,
    Limits,
    PrefixRecord,
    TenantRecord,
    is_number,
)
from shared.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All that routers keep in memory, as of `revision`. `tenancy`: some tenant was ever made, so that nobody is let in without a key.

    `secret` keys the salts of cache scopes.
    """

    revision: int
    tenancy: bool
    secret: bytes
    tenants: tuple[TenantRecord, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    adapters: tuple[AdapterRecord, ...] = ()
    prefixes: tuple[PrefixRecord, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A reservation to be made: one request, so many prompt tokens at once and so many output tokens in time, under `limits`."""

    charge_id: str
    tenant: str
    key: str
    model: str
    adapter: str
    limits: Limits
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Granted:
    """It is reserved."""

    rates: Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """`limit` (a field of Limits) does not allow it before `retry_after` seconds."""

    rates: Rates
    limit: str
    retry_after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewal:
    """A reservation lives; it has used so many tokens so far."""

    charge_id: str
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """A reservation's end."""

    charge_id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish: str
    worker: str


FOREVER = 2.0**53  # Unix seconds; nothing is later


def _check_times(since: float, until: float) -> None:
    for name, value in (("since", since), ("until", until)):
        if not is_number(value, least=-math.inf, most=math.inf):
            raise InvalidRequest(f"{name} must be Unix seconds", param=name)  # NaN, which no time is before or after


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageQuery:
    """Which lines of the ledger: since <= time < until, of one tenant, key, model (empty: of any); at most `limit`, oldest first.

    `after` continues behind the line of that number (see UsageLine).
    """

    since: float = 0.0
    until: float = FOREVER
    tenant: str = ""
    key: str = ""
    model: str = ""
    limit: int = 10_000
    after: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidRequest where a time is none."""
        _check_times(self.since, self.until)


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageLine:
    """A line of the ledger and its number, which grows."""

    number: int
    charge: Charge


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageTotal:
    """Sums over lines of equal tenant, key, model and adapter."""

    tenant: str
    key: str
    model: str
    adapter: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditQuery:
    """Which lines of the audit log: since <= time < until, by this actor, of this action (tenant: all of tenant.*), on this subject (acme:
    its keys and adapters too); empty: any. At most `limit`, from behind the line of number `after`."""

    since: float = 0.0
    until: float = FOREVER
    actor: str = ""
    action: str = ""
    subject: str = ""
    limit: int = 10_000
    after: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidRequest where a time is none."""
        _check_times(self.since, self.until)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditLine:
    """A line of the audit log and its number, which grows."""

    number: int
    record: AuditRecord


class Directory(Protocol):
    """Tenants, keys, adapters and public prefixes. Changes name their `actor`, and stand in the audit log by the same step."""

    async def revision(self) -> int:
        """Grows with each change of what a Snapshot holds."""

    async def snapshot(self) -> Snapshot:
        """All of it."""

    async def put_tenants(
        self,
        tenants: Sequence[TenantRecord],
        *,
        actor: str,
        origin: str = "",
        expected: Mapping[str, str] = NOTHING,
    ) -> None:
        """Make or replace these, all or none; `uid`s are the store's. Raises Conflict where one is not of the etag that is `expected` under
        its name (see records.etag; empty: there is none of this name)."""

    async def delete_tenant(
        self, name: str, *, actor: str, origin: str = "", expected: Mapping[str, str] = NOTHING
    ) -> None:
        """With its keys and adapters. Its lines in the ledger stay. Raises NotFound, or Conflict as put_tenants does."""

    async def add_key(self, key: KeyRecord, *, actor: str, origin: str = "") -> None:
        """Raises NotFound (no such tenant) or AlreadyExists (its name, or prefix)."""

    async def revoke_key(self, tenant: str, name: str, *, actor: str, origin: str = "") -> None:
        """It is no more. Raises NotFound."""

    async def put_adapter(self, adapter: AdapterRecord, *, actor: str) -> None:
        """Make or replace it. Raises NotFound (no such tenant), RateLimited where the tenant has as many resident as it may."""

    async def delete_adapter(self, tenant: str, name: str, *, actor: str) -> None:
        """Raises NotFound."""

    async def put_prefix(self, prefix: PrefixRecord, *, actor: str, origin: str = "") -> None:
        """Make or replace it. Raises InvalidRequest where there are as many as routers look for."""

    async def delete_prefix(self, name: str, *, actor: str, origin: str = "") -> None:
        """Raises NotFound."""

    async def note(self, record: AuditRecord) -> None:
        """A line in the audit log of what is no change of the store (a drain, a denied call)."""

    async def audit(self, *, since: float = 0.0, limit: int = 1_000) -> Sequence[AuditRecord]:
        """The log from `since` on, oldest first."""

    async def audit_lines(self, query: AuditQuery) -> Sequence[AuditLine]:
        """Lines of the log, oldest first."""


class Books(Protocol):
    """Quotas and the ledger."""

    async def reserve(self, wanted: Wanted) -> Granted | Refused:
        """Under the tenant's limits, as they are counted now. A charge id that is reserved already is granted without a second count."""

    async def renew(self, renewals: Sequence[Renewal]) -> None:
        """These live on, and have used so much. Those that are settled already are passed over."""

    async def settle(self, settlement: Settlement) -> bool:
        """Into the ledger, once for a charge id. Whether it was this call that did it."""

    async def abandon(self, charge_id: str) -> bool:
        """As if it had never been. Whether it was this call that did it."""

    async def sweep(self) -> int:
        """Settle those that were not renewed in time, at their last renewal, finish "lost". How many."""

    async def usage(self, query: UsageQuery) -> Sequence[UsageLine]:
        """Lines of the ledger."""

    async def totals(self, query: UsageQuery) -> Sequence[UsageTotal]:
        """Sums of the ledger; `limit` and `after` do not count."""


class Store(Directory, Books, Protocol):
    """All of it."""

    async def aclose(self) -> None:
        """After what was asked is done."""
