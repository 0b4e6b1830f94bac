"""octavo.v1.Admin over the operators' operations: thin, typed errors as rich statuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

from protos import admin_pb2 as pb
from protos import admin_pb2_grpc as pb_grpc
from router.admin.service import Admin, Call, Operator
from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.grpc.admin import wire
from router.edge.grpc.calls import Context, metadata, told
from router.edge.record import recorded


def _origin(peer: str) -> str:
    """The address of ipv4:ADDRESS:PORT or ipv6:[ADDRESS]:PORT."""
    address = unquote(peer).partition(":")[2].rpartition(":")[0]
    return address.removeprefix("[").removesuffix("]") or peer


def _credentials(context: Context) -> str | None:
    return credentials_of(metadata(context, AUTHORIZATION), metadata(context, API_KEY))


class AdminServicer(pb_grpc.AdminServicer):
    """Every call needs an admin's key."""

    def __init__(self, admin: Admin):
        self._admin = admin

    @asynccontextmanager
    async def _called(self, name: str, context: Context) -> AsyncIterator[Operator]:
        """Whoever calls, where it is an operator; ends the call with the rich status of whatever the block raises."""
        async with told(context):
            with recorded(f"Admin.{name}") as record:
                call = Call(credentials=lambda: _credentials(context), origin=_origin(context.peer()), asked=name)
                yield self._admin.operator(call)
                record.status = "OK"

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        """By name."""
        async with self._called("ListTenants", context):
            page = await self._admin.list_tenants(wire.page_from_pb(request))
            return pb.ListTenantsResponse(tenants=map(wire.tenant_to_pb, page.items), next_page_token=page.next)

    async def GetTenant(self, request: pb.GetTenantRequest, context: Context) -> pb.Tenant:
        """One."""
        async with self._called("GetTenant", context):
            return wire.tenant_to_pb(await self._admin.get_tenant(request.name))

    async def ApplyTenants(self, request: pb.ApplyTenantsRequest, context: Context) -> pb.ApplyTenantsResponse:
        """All or none."""
        async with self._called("ApplyTenants", context) as operator:
            tenants, expected = wire.tenants_from_pb(request)
            kept = await self._admin.apply_tenants(operator, tenants, expected)
            return pb.ApplyTenantsResponse(tenants=map(wire.tenant_to_pb, kept))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Context) -> pb.DeleteTenantResponse:
        """With its keys and adapters."""
        async with self._called("DeleteTenant", context) as operator:
            await self._admin.delete_tenant(operator, request.name, request.etag)
            return pb.DeleteTenantResponse()

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        """The key itself, this once."""
        async with self._called("CreateKey", context) as operator:
            key = await self._admin.create_key(operator, wire.key_from_pb(request))
            return pb.CreateKeyResponse(key=wire.key_to_pb(key.record), secret=key.text)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        """By tenant and name."""
        async with self._called("ListKeys", context):
            page = await self._admin.list_keys(request.tenant, wire.page_from_pb(request))
            return pb.ListKeysResponse(keys=map(wire.key_to_pb, page.items), next_page_token=page.next)

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        """Nothing begins with it any more."""
        async with self._called("RevokeKey", context) as operator:
            await self._admin.revoke_key(operator, request.tenant, request.name)
            return pb.RevokeKeyResponse()

    async def ListPrefixes(self, request: pb.ListPrefixesRequest, context: Context) -> pb.ListPrefixesResponse:
        """By name, without their texts."""
        async with self._called("ListPrefixes", context):
            page = await self._admin.list_prefixes(wire.page_from_pb(request))
            prefixes = map(wire.prefix_summary_to_pb, page.items)
            return pb.ListPrefixesResponse(prefixes=prefixes, next_page_token=page.next)

    async def GetPrefix(self, request: pb.GetPrefixRequest, context: Context) -> pb.Prefix:
        """One, whole."""
        async with self._called("GetPrefix", context):
            return wire.prefix_to_pb(await self._admin.get_prefix(request.name))

    async def PutPrefix(self, request: pb.PutPrefixRequest, context: Context) -> pb.Prefix:
        """Makes or replaces it."""
        async with self._called("PutPrefix", context) as operator:
            return wire.prefix_to_pb(await self._admin.put_prefix(operator, wire.prefix_from_pb(request.prefix)))

    async def DeletePrefix(self, request: pb.DeletePrefixRequest, context: Context) -> pb.DeletePrefixResponse:
        """No prompt shares it any more."""
        async with self._called("DeletePrefix", context) as operator:
            await self._admin.delete_prefix(operator, request.name)
            return pb.DeletePrefixResponse()

    async def QueryUsage(self, request: pb.QueryUsageRequest, context: Context) -> pb.QueryUsageResponse:
        """Lines of the ledger."""
        async with self._called("QueryUsage", context):
            page = await self._admin.usage(wire.usage_from_pb(request.filter), wire.page_from_pb(request))
            lines = [wire.charge_to_pb(line.charge) for line in page.items]
            return pb.QueryUsageResponse(lines=lines, next_page_token=page.next)

    async def SumUsage(self, request: pb.SumUsageRequest, context: Context) -> pb.SumUsageResponse:
        """Sums of the ledger."""
        async with self._called("SumUsage", context):
            totals = await self._admin.totals(wire.usage_from_pb(request.filter))
            return pb.SumUsageResponse(totals=map(wire.total_to_pb, totals))

    async def QueryAudit(self, request: pb.QueryAuditRequest, context: Context) -> pb.QueryAuditResponse:
        """Lines of the audit log."""
        async with self._called("QueryAudit", context):
            page = await self._admin.audit(wire.audit_from_pb(request), wire.page_from_pb(request))
            lines = [wire.audit_to_pb(line.record) for line in page.items]
            return pb.QueryAuditResponse(lines=lines, next_page_token=page.next)

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        """As this process sees them."""
        async with self._called("ListWorkers", context):
            return pb.ListWorkersResponse(workers=map(wire.worker_to_pb, self._admin.workers()))

    async def Drain(self, request: pb.DrainWorkerRequest, context: Context) -> pb.DrainWorkerResponse:
        """Answers when nothing runs there any more."""
        async with self._called("Drain", context) as operator:
            seconds = request.deadline_seconds if request.HasField("deadline_seconds") else None
            drained = await self._admin.drain(operator, request.worker, seconds)
            return pb.DrainWorkerResponse(worker_id=drained.worker_id, unfinished=drained.unfinished)
