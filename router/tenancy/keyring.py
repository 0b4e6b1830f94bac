"""From a call's credentials to its caller. What the store knows of keys is kept in memory, and looked at anew as often as it changes."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from router.tenancy import keys, salts
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.records import KeyRecord, TenantRecord
from router.tenancy.store import Directory, Snapshot
from shared.errors import OctavoError, Unauthenticated
from shared.types import Tenant

POLL_SECONDS = 0.25  # so that a change is known everywhere within a second

_LOG = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Knows callers."""

    def authenticate(self, credentials: str | None) -> Caller:
        """Whose key this is. Raises Unauthenticated, in the same words for every key that is none (any more)."""


class OpenAuthenticator:
    """Everyone is the open tenant, whatever they send: where no store is configured."""

    def authenticate(self, credentials: str | None) -> Caller:
        """See Authenticator."""
        del credentials
        return OPEN_CALLER


@dataclass(frozen=True, slots=True)
class _Entry:
    record: KeyRecord
    caller: Caller


def _caller(tenant: TenantRecord, key: KeyRecord, secret: bytes) -> Caller:
    return Caller(
        tenant=Tenant(
            id=tenant.name,
            weight=tenant.weight,
            salt=salts.of_tenant(secret, tenant),
            top_class=tenant.top_class,
        ),
        key=key.name,
        scopes=key.scopes,
        limits=tenant.limits,
        models=tenant.models,
        adapters=tenant.adapters,
    )


def _entries(snapshot: Snapshot) -> Mapping[str, _Entry]:
    tenants = {tenant.name: tenant for tenant in snapshot.tenants}
    return MappingProxyType(
        {key.prefix: _Entry(key, _caller(tenants[key.tenant], key, snapshot.secret)) for key in snapshot.keys}
    )


class Keyring:
    """Implements Authenticator over a store. Start it, and close it before the store.

    `changed` are called with each new snapshot, in the event loop.
    """

    def __init__(self, store: Directory, *, clock: Callable[[], float] = time.time, poll: float = POLL_SECONDS):
        self._store = store
        self._clock = clock
        self._poll = poll
        self._entries: Mapping[str, _Entry] = MappingProxyType({})
        self._task: asyncio.Task[None] | None = None
        self.snapshot = Snapshot(revision=-1, tenancy=True, secret=b"")
        self.changed: list[Callable[[Snapshot], None]] = []

    async def start(self) -> None:
        """Raises Unavailable where the store cannot be read."""
        await self.refresh()
        self._task = asyncio.create_task(self._follow())

    async def refresh(self) -> None:
        """Look now whether something changed."""
        if await self._store.revision() != self.snapshot.revision:
            snapshot = await self._store.snapshot()
            self._entries, self.snapshot = _entries(snapshot), snapshot
            for told in self.changed:
                told(snapshot)

    def authenticate(self, credentials: str | None) -> Caller:
        """See Authenticator. Where no tenant was ever made, everyone is the open tenant."""
        if not self.snapshot.tenancy:
            return OPEN_CALLER
        if not credentials:
            raise Unauthenticated("an API key is needed: Authorization: Bearer KEY")
        entry = self._entry(credentials)
        if entry is None:
            raise Unauthenticated("this API key is not valid")
        return entry.caller

    def _entry(self, credentials: str) -> _Entry | None:
        """Every key costs one hash and one comparison, whether it is known or not."""
        prefix, secret = keys.parts(credentials) or ("", "")
        entry = self._entries.get(prefix)
        same = keys.matches(secret, entry.record if entry else keys.NOBODY)
        if entry is None or not same:
            return None
        expires = entry.record.expires
        return entry if expires is None or self._clock() < expires else None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll)
            try:
                await self.refresh()
            except OctavoError as error:
                _LOG.warning("tenants and keys stay as they were: %s", error.message)
            except Exception:  # noqa: BLE001 - whatever it was, a revoked key must not stay valid because nobody looks any more
                _LOG.exception("tenants and keys stay as they were")

    async def aclose(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
