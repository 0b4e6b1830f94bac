"""Usage and the audit log."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from router.admin.service import Admin
from router.edge.http.admin.query import PAGE, given, page_of, span
from router.tenancy import export
from router.tenancy.store import AuditQuery, UsageLine, UsageQuery
from shared.errors import InvalidRequest

_USAGE = frozenset({"since", "until", "tenant", "key_name", "model", "format"})
_AUDIT = frozenset({"since", "until", "actor", "action", "subject", "format"})
_NEXT = "x-next-page-token"


def _usage(values: Mapping[str, str]) -> UsageQuery:
    since, until = span(values)
    tenant, key, model = (values.get(name, "") for name in ("tenant", "key_name", "model"))
    return UsageQuery(since=since, until=until, tenant=tenant, key=key, model=model)


def _csv(values: Mapping[str, str]) -> bool:
    form = values.get("format", "json")
    if form not in ("json", "csv"):
        raise InvalidRequest("format must be json or csv", param="format")
    return form == "csv"


def _lines(lines: Sequence[UsageLine], following: str, csv: bool) -> Response:
    if csv:
        return Response(export.lines(lines, "csv"), media_type="text/csv", headers={_NEXT: following})
    return JSONResponse({"lines": [asdict(line.charge) for line in lines], "next_page_token": following})


def routes(admin: Admin) -> APIRouter:
    """All of them only read."""
    router = APIRouter()

    @router.get("/usage")
    async def usage(request: Request) -> Response:
        values = given(request, _USAGE | PAGE)
        csv, page = _csv(values), await admin.usage(_usage(values), page_of(values))
        return _lines(page.items, page.next, csv)

    @router.get("/usage/totals")
    async def totals(request: Request) -> Response:
        values = given(request, _USAGE)
        csv, found = _csv(values), await admin.totals(_usage(values))
        if csv:
            return Response(export.totals(found, "csv"), media_type="text/csv")
        return JSONResponse({"totals": [asdict(total) for total in found]})

    @router.get("/audit")
    async def audit(request: Request) -> Response:
        values = given(request, _AUDIT | PAGE)
        since, until = span(values)
        actor, action, subject = (values.get(name, "") for name in ("actor", "action", "subject"))
        query = AuditQuery(since=since, until=until, actor=actor, action=action, subject=subject)
        csv, page = _csv(values), await admin.audit(query, page_of(values))
        if csv:
            return Response(export.audit(page.items, "csv"), media_type="text/csv", headers={_NEXT: page.next})
        lines = [export.audit_fields(line.record) for line in page.items]
        return JSONResponse({"lines": lines, "next_page_token": page.next})

    return router
