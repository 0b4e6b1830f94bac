"""Public prefixes."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from router.admin.service import Admin
from router.edge.http.admin.query import PAGE, given, page_of
from router.edge.http.body import Bodies, json_route
from router.tenancy.records import PrefixRecord
from shared.errors import InvalidRequest

_NONE: frozenset[str] = frozenset()
_FIELDS = frozenset({"name", "text", "system", "models", "created"})


def _whole(prefix: PrefixRecord) -> dict[str, Any]:
    kind = "system" if prefix.system else "text"
    told = {"name": prefix.name, kind: prefix.system or prefix.text}
    return {**told, "models": list(prefix.models), "created": prefix.created}


def _summary(prefix: PrefixRecord) -> dict[str, Any]:
    """Without its text, of which there may be megabytes."""
    kind, text = ("system", prefix.system) if prefix.system else ("text", prefix.text)
    told = {"name": prefix.name, "kind": kind, "characters": len(text)}
    return {**told, "models": list(prefix.models), "created": prefix.created}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a text", param=name)
    return value or ""


def _wanted(value: object, name: str) -> PrefixRecord:
    """The prefix of a body whose address names it. Raises InvalidRequest."""
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", code="invalid_type")
    unknown = next((str(key) for key in value if key not in _FIELDS), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown[:100]!r} is not known here", param=unknown[:100])
    if value.get("name", name) != name:
        raise InvalidRequest("name must be the address's", param="name")
    models = value.get("models", ["*"])
    if not isinstance(models, list) or not all(isinstance(each, str) for each in models):
        raise InvalidRequest("models must be a list of texts", param="models")
    return PrefixRecord(name=name, text=_text(value, "text"), system=_text(value, "system"), models=tuple(models))


def reading(admin: Admin) -> APIRouter:
    """Routes without a body."""
    router = APIRouter()

    @router.get("/prefixes")
    async def list_prefixes(request: Request) -> Response:
        page = await admin.list_prefixes(page_of(given(request, PAGE)))
        return JSONResponse({"prefixes": list(map(_summary, page.items)), "next_page_token": page.next})

    @router.get("/prefixes/{name}")
    async def get_prefix(name: str, request: Request) -> Response:
        given(request, _NONE)
        return JSONResponse(_whole(await admin.get_prefix(name)))

    @router.delete("/prefixes/{name}")
    async def delete_prefix(name: str, request: Request) -> Response:
        given(request, _NONE)
        await admin.delete_prefix(request.state.operator, name)
        return Response(status_code=204)

    return router


def writing(admin: Admin, bodies: Bodies) -> APIRouter:
    """Routes that take JSON."""
    router = APIRouter(route_class=json_route(bodies))

    @router.put("/prefixes/{name}")
    async def put_prefix(name: str, request: Request) -> Response:
        given(request, _NONE)
        return JSONResponse(_whole(await admin.put_prefix(request.state.operator, _wanted(await request.json(), name))))

    return router
