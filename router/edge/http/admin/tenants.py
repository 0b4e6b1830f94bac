"""Tenants and their keys."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from router.admin.service import Admin, KeyWanted, check_count
from router.edge.http.admin.query import PAGE, given, page_of
from router.edge.http.body import Bodies, json_route
from router.tenancy.document import document_of, tenant_from
from router.tenancy.keys import NewKey
from router.tenancy.records import KeyRecord, Scope, TenantRecord, etag
from shared.errors import InvalidRequest

_NONE: frozenset[str] = frozenset()
_KEY = frozenset({"name", "scopes", "expires"})
_UNSEEN = {"cache-control": "no-store"}  # what holds a key


def _tenant(tenant: TenantRecord) -> dict[str, Any]:
    """As a document writes it, defaults and etag too."""
    whole = {
        name: getattr(tenant, name) for name in ("name", "weight", "top_class", "models", "adapters", "cache_scope")
    }
    limits = document_of(tenant).get("limits", {})
    return {**whole, "limits": limits, "labels": dict(tenant.labels), "etag": etag(tenant)}


def _tagged(tenant: TenantRecord, status: int = 200) -> Response:
    return JSONResponse(_tenant(tenant), status_code=status, headers={"etag": f'"{etag(tenant)}"'})


def _key(key: KeyRecord) -> dict[str, Any]:
    scopes = sorted(scope.value for scope in key.scopes)
    told = {"tenant": key.tenant, "name": key.name, "prefix": key.prefix, "scopes": scopes}
    return {**told, "created": key.created, "expires": key.expires}


def _expected(request: Request) -> str | None:
    """The etag that If-Match wants; "" where If-None-Match wants none to be there; None where anything will do."""
    match, none = request.headers.get("if-match"), request.headers.get("if-none-match")
    if none is not None:
        if none.strip() != "*" or match is not None:
            raise InvalidRequest("If-None-Match must be *, without If-Match", param="if-none-match")
        return ""
    if match is None or match.strip() == "*":
        return None
    tag = match.strip().removeprefix('"').removesuffix('"')
    if not tag:
        raise InvalidRequest("If-Match must be an etag", param="if-match")
    return tag


def _object(value: object, names: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", code="invalid_type")
    unknown = next((str(name) for name in value if name not in names), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown[:100]!r} is not known here", param=unknown[:100])
    return value


def _listed(value: object) -> tuple[list[TenantRecord], dict[str, str]]:
    """The tenants of a body, and the etags that they stand there with."""
    body = _object(value, frozenset({"tenants"}))
    listed = body.get("tenants")
    if not isinstance(listed, list):
        raise InvalidRequest("tenants must be a list", param="tenants")
    check_count(len(listed))
    tenants, expected = [], {}
    for at, one in enumerate(listed):
        tag = _tag(one, f"tenants[{at}].etag")
        tenant = tenant_from(one, f"tenants[{at}]")
        if tag:
            expected[tenant.name] = tag
        tenants.append(tenant)
    return tenants, expected


def _tag(body: object, param: str) -> str:
    """The etag that a tenant stands there with, which is taken out of it; empty where there is none."""
    tag = body.pop("etag", None) if isinstance(body, dict) else None
    if tag is not None and not isinstance(tag, str):
        raise InvalidRequest(f"{param} must be a text", param=param)
    return tag or ""


def _named(value: object, name: str) -> tuple[TenantRecord, str]:
    """The tenant of a body whose address names it, and the etag that it stands there with."""
    body = dict(value) if isinstance(value, Mapping) else value
    tag = _tag(body, "etag")
    if isinstance(body, dict) and body.setdefault("name", name) != name:
        raise InvalidRequest("name must be the address's", param="name")
    try:
        return tenant_from(body), tag
    except InvalidRequest as error:
        param = (error.param or "").removeprefix("tenant").removeprefix(".") or None
        raise InvalidRequest(error.message, param=param, code=error.code) from error


def _wanted(value: object, tenant: str) -> KeyWanted:
    body = _object(value, _KEY)
    name, scopes, expires = body.get("name"), body.get("scopes"), body.get("expires")
    if not isinstance(name, str):
        raise InvalidRequest("name is needed, as a text", param="name")
    known = {scope.value: scope for scope in Scope}
    if scopes is None:
        scopes = ["infer"]
    if not isinstance(scopes, list) or any(not isinstance(one, str) or one not in known for one in scopes):
        raise InvalidRequest(f"scopes must be of {', '.join(known)}", param="scopes")
    if expires is not None and (isinstance(expires, bool) or not isinstance(expires, int | float)):
        raise InvalidRequest("expires must be Unix seconds", param="expires")
    return KeyWanted(tenant=tenant, name=name, scopes=frozenset(known[one] for one in scopes), expires=expires)


def _made(key: NewKey) -> Response:
    return JSONResponse({**_key(key.record), "key": key.text}, status_code=201, headers=_UNSEEN)


def reading(admin: Admin) -> APIRouter:
    """Routes without a body."""
    router = APIRouter()

    @router.get("/tenants")
    async def list_tenants(request: Request) -> Response:
        page = await admin.list_tenants(page_of(given(request, PAGE)))
        return JSONResponse({"tenants": list(map(_tenant, page.items)), "next_page_token": page.next})

    @router.get("/tenants/{name}")
    async def get_tenant(name: str, request: Request) -> Response:
        given(request, _NONE)
        return _tagged(await admin.get_tenant(name))

    @router.delete("/tenants/{name}")
    async def delete_tenant(name: str, request: Request) -> Response:
        given(request, _NONE)
        await admin.delete_tenant(request.state.operator, name, _expected(request) or "")
        return Response(status_code=204)

    @router.get("/keys")
    async def list_keys(request: Request) -> Response:
        values = given(request, PAGE | {"tenant"})
        page = await admin.list_keys(values.get("tenant", ""), page_of(values))
        return JSONResponse({"keys": list(map(_key, page.items)), "next_page_token": page.next})

    @router.delete("/tenants/{tenant}/keys/{name}")
    async def revoke_key(tenant: str, name: str, request: Request) -> Response:
        given(request, _NONE)
        await admin.revoke_key(request.state.operator, tenant, name)
        return Response(status_code=204)

    return router


def writing(admin: Admin, bodies: Bodies) -> APIRouter:
    """Routes that take JSON."""
    router = APIRouter(route_class=json_route(bodies))

    @router.put("/tenants/{name}")
    async def put_tenant(name: str, request: Request) -> Response:
        given(request, _NONE)
        tenant, tag = _named(await request.json(), name)
        expected = _expected(request)
        if expected is None:
            expected = tag or None
        meant = {} if expected is None else {name: expected}
        (kept,) = await admin.apply_tenants(request.state.operator, [tenant], meant)
        return _tagged(kept)

    @router.post("/tenants:apply")
    async def apply(request: Request) -> Response:
        given(request, _NONE)
        kept = await admin.apply_tenants(request.state.operator, *_listed(await request.json()))
        return JSONResponse({"tenants": list(map(_tenant, kept))})

    @router.post("/tenants/{tenant}/keys")
    async def create_key(tenant: str, request: Request) -> Response:
        given(request, _NONE)
        wanted = _wanted(await request.json(), tenant)
        return _made(await admin.create_key(request.state.operator, wanted))

    return router
