"""Who a call is for, and what it may: made from its credentials alone, carried by the request, never by a header of the client's choice."""

from dataclasses import dataclass, field

from router.tenancy.records import NO_LIMITS, Limits, Scope, matches
from shared.errors import PermissionDenied
from shared.types import OPEN_TENANT, Tenant

EVERYTHING = ("*",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """A tenant and the key that it came with. `key` is the key's name, never the key.

    Names that it does not see are to be answered as those that do not exist.
    """

    tenant: Tenant
    key: str = ""
    scopes: frozenset[Scope] = field(default_factory=lambda: frozenset({Scope.INFER}))
    limits: Limits = NO_LIMITS
    models: tuple[str, ...] = EVERYTHING
    adapters: tuple[str, ...] = EVERYTHING

    def require(self, scope: Scope) -> None:
        """Raises PermissionDenied where the key is not for this."""
        if scope not in self.scopes:
            raise PermissionDenied(f"this key does not have the scope {scope.value}")

    def sees_model(self, name: str) -> bool:
        """Whether this served name exists for the caller."""
        return matches(name, self.models)

    def sees_adapter(self, canonical: str) -> bool:
        """Whether this adapter (`name` shared, or `tenant/name`) exists for the caller: its own all do, of another tenant none."""
        owner, slash, _ = canonical.rpartition("/")
        return owner == self.tenant.id if slash else matches(canonical, self.adapters)


OPEN_CALLER = Caller(tenant=OPEN_TENANT, scopes=frozenset(Scope))
