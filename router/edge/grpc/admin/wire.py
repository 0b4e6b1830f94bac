"""The Admin service's messages, to and from the records that the operations take. Errors name the message's field."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from google.protobuf.message import Message

from protos import admin_pb2 as pb
from router.admin.paging import SIZE, Page
from router.admin.service import KeyWanted
from router.fleet.report import WorkerReport
from router.tenancy.records import OWN, AuditRecord, Charge, KeyRecord, Limits, PrefixRecord, Scope, TenantRecord, etag
from router.tenancy.store import AuditQuery, UsageQuery, UsageTotal
from shared.errors import InvalidRequest

_SCOPES: Mapping[pb.KeyScope.ValueType, Scope] = {
    pb.KEY_SCOPE_INFER: Scope.INFER,
    pb.KEY_SCOPE_ADAPTERS: Scope.ADAPTERS,
    pb.KEY_SCOPE_ADMIN: Scope.ADMIN,
}
_NUMBERS = {scope: number for number, scope in _SCOPES.items()}


def page_from_pb(request: Any) -> Page:
    """Of any request that has page_size and page_token."""
    return Page(size=request.page_size or SIZE, after=request.page_token)


def _given(message: Message, names: Sequence[str]) -> dict[str, Any]:
    """The optional fields that are set."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def tenants_from_pb(request: pb.ApplyTenantsRequest) -> tuple[list[TenantRecord], Mapping[str, str]]:
    """The tenants, and the etags that are expected of them."""
    tenants = [_tenant_from_pb(tenant, f"tenants[{at}]") for at, tenant in enumerate(request.tenants)]
    expected = {tenant.name: tenant.etag for tenant in request.tenants if tenant.etag or request.only_new}
    return tenants, expected


def _tenant_from_pb(tenant: pb.Tenant, where: str) -> TenantRecord:
    values = _given(tenant, ("weight", "top_class"))
    values |= {name: tuple(getattr(tenant, name).patterns) for name in ("models", "adapters") if tenant.HasField(name)}
    try:
        return TenantRecord(
            name=tenant.name,
            limits=_limits_from_pb(tenant.limits),
            cache_scope=tenant.cache_scope or OWN,
            labels=dict(tenant.labels),
            **values,
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error.message}", param=f"{where}.{error.param}") from error


def _limits_from_pb(limits: pb.Limits) -> Limits:
    try:
        return Limits(**_given(limits, [each.name for each in fields(Limits)]))
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=f"limits.{error.param}") from error


def tenant_to_pb(tenant: TenantRecord) -> pb.Tenant:
    """All of it, with its etag."""
    limits = {name: limit for name, limit in asdict(tenant.limits).items() if limit is not None}
    return pb.Tenant(
        name=tenant.name,
        weight=tenant.weight,
        top_class=tenant.top_class,
        limits=pb.Limits(**limits),
        models=pb.Patterns(patterns=tenant.models),
        adapters=pb.Patterns(patterns=tenant.adapters),
        cache_scope=tenant.cache_scope,
        labels=dict(tenant.labels),
        etag=etag(tenant),
    )


def key_from_pb(request: pb.CreateKeyRequest) -> KeyWanted:
    """The key that is wanted."""
    unknown = next((scope for scope in request.scopes if scope not in _SCOPES), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown} is no scope", param="scopes")
    scopes = frozenset(_SCOPES[scope] for scope in request.scopes) or frozenset({Scope.INFER})
    expires = request.expires if request.HasField("expires") else None
    return KeyWanted(tenant=request.tenant, name=request.name, scopes=scopes, expires=expires)


def key_to_pb(key: KeyRecord) -> pb.Key:
    """A key without its secret."""
    told = pb.Key(tenant=key.tenant, name=key.name, prefix=key.prefix, created=key.created)
    told.scopes.extend(sorted(_NUMBERS[scope] for scope in key.scopes))
    if key.expires is not None:
        told.expires = key.expires
    return told


def prefix_from_pb(prefix: pb.Prefix) -> PrefixRecord:
    """The prefix that is meant. Raises InvalidRequest."""
    models = tuple(prefix.models.patterns) if prefix.HasField("models") else ("*",)
    try:
        return PrefixRecord(name=prefix.name, text=prefix.text, system=prefix.system, models=models)
    except InvalidRequest as error:
        raise InvalidRequest(f"prefix: {error.message}", param=f"prefix.{error.param}") from error


def prefix_to_pb(prefix: PrefixRecord) -> pb.Prefix:
    """All of it."""
    told = pb.Prefix(name=prefix.name, models=pb.Patterns(patterns=prefix.models), created=prefix.created)
    if prefix.system:
        told.system = prefix.system
    else:
        told.text = prefix.text
    return told


def prefix_summary_to_pb(prefix: PrefixRecord) -> pb.PrefixSummary:
    """Without its text."""
    return pb.PrefixSummary(
        name=prefix.name,
        system=bool(prefix.system),
        characters=len(prefix.text) + len(prefix.system),
        models=pb.Patterns(patterns=prefix.models),
        created=prefix.created,
    )


def usage_from_pb(given: pb.UsageFilter) -> UsageQuery:
    """The lines that are meant."""
    return UsageQuery(tenant=given.tenant, key=given.key, model=given.model, **_given(given, ("since", "until")))


def charge_to_pb(charge: Charge) -> pb.UsageLine:
    """A line of the ledger."""
    return pb.UsageLine(**asdict(charge))


def total_to_pb(total: UsageTotal) -> pb.UsageTotal:
    """A sum over the ledger."""
    return pb.UsageTotal(**asdict(total))


def audit_from_pb(request: pb.QueryAuditRequest) -> AuditQuery:
    """The lines that are meant."""
    times = _given(request, ("since", "until"))
    return AuditQuery(actor=request.actor, action=request.action, subject=request.subject, **times)


def audit_to_pb(record: AuditRecord) -> pb.AuditLine:
    """A line of the audit log."""
    told = asdict(record)
    return pb.AuditLine(after=told.pop("detail"), **told)


def worker_to_pb(report: WorkerReport) -> pb.WorkerStatus:
    """A worker as this router sees it."""
    return pb.WorkerStatus(**asdict(report))
