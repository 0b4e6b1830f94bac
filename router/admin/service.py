"""The operators' operations over the store. Every change names its key in the audit log, and the address that it came from."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from router.admin.denials import Denial, Denials
from router.admin.paging import Page, Paged, number_of, paged
from router.fleet.drain import Drained
from router.fleet.report import WorkerReport
from router.tenancy.caller import OPEN_CALLER, Caller
from router.tenancy.keyring import Keyring
from router.tenancy.keys import LAST_EXPIRY, NewKey, new_key
from router.tenancy.records import AuditRecord, KeyRecord, PrefixRecord, Scope, TenantRecord, check_name, is_number
from router.tenancy.store import AuditLine, AuditQuery, Snapshot, Store, UsageLine, UsageQuery, UsageTotal
from shared.errors import InvalidRequest, NotFound, OctavoError, Unauthenticated

MOST_TENANTS = 1_000  # of one call
MOST_DRAIN_SECONDS = 86_400.0


def _actor(caller: Caller) -> str:
    """tenant/key."""
    return f"{caller.tenant.id}/{caller.key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What is known of a call before it is let in: its key (`credentials` raises InvalidRequest where that is none), the address that it
    came from, and what it asks for, in words."""

    credentials: Callable[[], str | None]
    origin: str
    asked: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """Who calls: an admin's key, and the address that it came from."""

    caller: Caller
    origin: str

    @property
    def actor(self) -> str:
        """As the audit log names it."""
        return _actor(self.caller)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyWanted:
    """A key to be made. `expires` (Unix seconds) None: never."""

    tenant: str
    name: str
    scopes: frozenset[Scope]
    expires: float | None


class Admin:
    """All operations. They raise OctavoErrors only; those about a parameter name it. `clock` is the wall clock, in Unix seconds. Close its
    `denials` before the store."""

    def __init__(
        self,
        store: Store,
        keyring: Keyring,
        workers: Callable[[], Sequence[WorkerReport]],
        drain: Callable[[str, float | None], Awaitable[Drained]],
        *,
        clock: Callable[[], float] = time.time,
    ):
        self._store = store
        self._keyring = keyring
        self._clock = clock
        self._drain = drain
        self.denials = Denials(store.note, clock)
        self.workers = workers

    def operator(self, call: Call) -> Operator:
        """Raises InvalidRequest, Unauthenticated or PermissionDenied, which stand in the audit log then. While no tenant is made, nobody
        is an operator here, though anyone is let in elsewhere: the first key is made on the host itself."""
        actor = ""
        try:
            caller = self._keyring.authenticate(call.credentials())
            if caller is OPEN_CALLER:
                raise Unauthenticated(
                    "a key with the scope admin is needed; `octavo key create` on the host makes the first"
                )
            actor = _actor(caller)
            caller.require(Scope.ADMIN)
        except OctavoError as error:
            self.denials.add(Denial(actor=actor, origin=call.origin, reason=error.code), call.asked)
            raise
        return Operator(caller=caller, origin=call.origin)

    # ---- tenants

    async def list_tenants(self, page: Page) -> Paged[TenantRecord]:
        """By name."""
        snapshot = await self._store.snapshot()
        return paged(snapshot.tenants, page, lambda tenant: tenant.name)

    async def get_tenant(self, name: str) -> TenantRecord:
        """Raises NotFound."""
        return _tenant(await self._store.snapshot(), name, "name")

    async def apply_tenants(
        self, operator: Operator, tenants: Sequence[TenantRecord], expected: Mapping[str, str]
    ) -> list[TenantRecord]:
        """All or none, as they are kept afterwards. `expected` are etags by name: see Directory.put_tenants."""
        names = [tenant.name for tenant in tenants]
        check_count(len(names))
        twice = next((at for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise InvalidRequest(f"{names[twice]!r} stands there twice", param=f"tenants[{twice}].name")
        await self._store.put_tenants(tenants, actor=operator.actor, origin=operator.origin, expected=expected)
        await self._keyring.refresh()
        kept = {tenant.name: tenant for tenant in (await self._store.snapshot()).tenants}
        return [kept.get(tenant.name, tenant) for tenant in tenants]

    async def delete_tenant(self, operator: Operator, name: str, etag: str = "") -> None:
        """Raises NotFound, or Conflict."""
        expected = {name: etag} if etag else {}
        await self._store.delete_tenant(name, actor=operator.actor, origin=operator.origin, expected=expected)
        await self._keyring.refresh()

    # ---- keys

    async def create_key(self, operator: Operator, wanted: KeyWanted) -> NewKey:
        """The key itself, this once. Raises NotFound or AlreadyExists."""
        now, expires = self._clock(), wanted.expires
        if expires is not None and not (is_number(expires, least=now, most=LAST_EXPIRY) and expires > now):
            raise InvalidRequest("expires must be a time to come, in Unix seconds", param="expires")
        key = new_key(tenant=wanted.tenant, name=wanted.name, scopes=wanted.scopes, now=now, expires=expires)
        await self._store.add_key(key.record, actor=operator.actor, origin=operator.origin)
        await self._keyring.refresh()
        return key

    async def list_keys(self, tenant: str, page: Page) -> Paged[KeyRecord]:
        """By tenant and name; of one tenant, or with an empty name of all."""
        snapshot = await self._store.snapshot()
        if tenant:
            _tenant(snapshot, tenant, "tenant")
        keys = [key for key in snapshot.keys if tenant in ("", key.tenant)]
        return paged(keys, page, lambda key: f"{key.tenant}/{key.name}")

    async def revoke_key(self, operator: Operator, tenant: str, name: str) -> None:
        """Raises NotFound."""
        check_name(name, "name")  # who gives the key itself does not read it again in the error
        await self._store.revoke_key(tenant, name, actor=operator.actor, origin=operator.origin)
        await self._keyring.refresh()

    # ---- public prefixes

    async def list_prefixes(self, page: Page) -> Paged[PrefixRecord]:
        """By name."""
        snapshot = await self._store.snapshot()
        return paged(snapshot.prefixes, page, lambda prefix: prefix.name)

    async def get_prefix(self, name: str) -> PrefixRecord:
        """Raises NotFound."""
        found = next((prefix for prefix in (await self._store.snapshot()).prefixes if prefix.name == name), None)
        if found is None:
            raise NotFound(f"no public prefix {name[:200]!r}", param="name")
        return found

    async def put_prefix(self, operator: Operator, prefix: PrefixRecord) -> PrefixRecord:
        """Makes or replaces it; as it is kept. Raises InvalidRequest where there are as many as routers look for."""
        kept = replace(prefix, created=self._clock())
        await self._store.put_prefix(kept, actor=operator.actor, origin=operator.origin)
        await self._keyring.refresh()
        return kept

    async def delete_prefix(self, operator: Operator, name: str) -> None:
        """Raises NotFound."""
        check_name(name, "name")
        await self._store.delete_prefix(name, actor=operator.actor, origin=operator.origin)
        await self._keyring.refresh()

    # ---- workers

    async def drain(self, operator: Operator, worker: str, seconds: float | None) -> Drained:
        """The worker of this target or worker_id takes nothing new. Returns when nothing runs there any more; by then the log has it,
        whoever waited. Raises NotFound, or Unavailable.
        """
        if seconds is not None and not is_number(seconds, least=0.0, most=MOST_DRAIN_SECONDS):
            message = f"deadline_seconds must be from 0 to {MOST_DRAIN_SECONDS:g}"
            raise InvalidRequest(message, param="deadline_seconds")
        found = next((each for each in self.workers() if worker and worker in (each.target, each.worker_id)), None)
        if found is None:
            raise NotFound(f"no worker {worker[:200]!r}", param="worker")
        line = AuditRecord(
            time=self._clock(),
            actor=operator.actor,
            action="worker.drain",
            subject=found.target,
            detail="" if seconds is None else f"deadline {seconds:g} s",
            origin=operator.origin,
            before=found.state,
        )
        await self._store.note(line)
        return await self._drain(found.target, seconds)

    # ---- books

    async def usage(self, query: UsageQuery, page: Page) -> Paged[UsageLine]:
        """Lines of the ledger, oldest first."""
        lines = await self._store.usage(replace(query, limit=page.size, after=number_of(page)))
        return Paged(items=lines, next=str(lines[-1].number) if len(lines) == page.size else "")

    async def totals(self, query: UsageQuery) -> Sequence[UsageTotal]:
        """Sums of the ledger by tenant, key, model and adapter."""
        return await self._store.totals(query)

    async def audit(self, query: AuditQuery, page: Page) -> Paged[AuditLine]:
        """Lines of the audit log, oldest first."""
        lines = await self._store.audit_lines(replace(query, limit=page.size, after=number_of(page)))
        return Paged(items=lines, next=str(lines[-1].number) if len(lines) == page.size else "")


def check_count(tenants: int) -> None:
    """Raises InvalidRequest where they are not as many as one call may change."""
    if not 0 < tenants <= MOST_TENANTS:
        raise InvalidRequest(f"tenants must be 1 to {MOST_TENANTS}", param="tenants")


def _tenant(snapshot: Snapshot, name: str, param: str) -> TenantRecord:
    found = next((tenant for tenant in snapshot.tenants if tenant.name == name), None)
    if found is None:
        raise NotFound(f"no tenant {name[:200]!r}", param=param)
    return found
