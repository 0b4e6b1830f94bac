"""Puts tenancy together: open where there is no store, and with keys, limits and a ledger where there is one."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from router.tenancy.admission import Admission, OpenAdmission
from router.tenancy.keyring import Authenticator, Keyring, OpenAuthenticator
from router.tenancy.quotas import Quotas
from router.tenancy.records import PrefixRecord
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenancy:
    """What the router's parts need of it. `store` and `keyring` are None where no store is configured."""

    authenticator: Authenticator
    admission: Admission
    store: Store | None = None
    keyring: Keyring | None = None

    @property
    def open(self) -> bool:
        """Whether everyone is let in now, whatever they send."""
        return self.keyring is None or not self.keyring.snapshot.tenancy

    def prefixes(self) -> Sequence[PrefixRecord]:
        """The public prefixes as they are now."""
        return () if self.keyring is None else self.keyring.snapshot.prefixes


@asynccontextmanager
async def tenancy(path: Path | None, *, make: bool = True) -> AsyncIterator[Tenancy]:
    """Tenancy over the store at `path`; `make`: one is made where there is none. Leave the block after every request has ended: it keeps
    what they settled.

    Raises sqlite3.Error, OSError or WrongVersion where there is no store to be had.
    """
    if path is None:
        yield Tenancy(authenticator=OpenAuthenticator(), admission=OpenAdmission())
        return
    async with over(SqliteStore(path, make=make)) as whole:
        yield whole


@asynccontextmanager
async def over(store: Store, *, clock: Callable[[], float] = time.monotonic) -> AsyncIterator[Tenancy]:
    """Tenancy over this store, which is closed at the block's end. `clock` (seconds) says how old a refusal is."""
    try:
        keyring, quotas = Keyring(store), Quotas(store, clock=clock)
        await keyring.start()
        quotas.start()
        try:
            yield Tenancy(authenticator=keyring, admission=quotas, store=store, keyring=keyring)
        finally:
            await keyring.aclose()
            await quotas.aclose()
    finally:
        await store.aclose()
