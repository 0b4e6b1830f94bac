"""The workers, as the answering process sees them."""

from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from router.admin.service import Admin
from router.edge.http.admin.query import given
from router.edge.http.body import Bodies, json_route
from shared.errors import InvalidRequest

_NONE: frozenset[str] = frozenset()
_DEADLINE = "deadline_seconds"


def _deadline(value: object) -> float | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest("the body must be a JSON object", code="invalid_type")
    unknown = next((str(name) for name in value if name != _DEADLINE), None)
    if unknown is not None:
        raise InvalidRequest(f"{unknown[:100]!r} is not known here", param=unknown[:100])
    seconds = value.get(_DEADLINE)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise InvalidRequest(f"{_DEADLINE} must be a number", param=_DEADLINE)
    return seconds


def reading(admin: Admin) -> APIRouter:
    """Routes without a body."""
    router = APIRouter()

    @router.get("/workers")
    async def workers(request: Request) -> Response:
        given(request, _NONE)
        return JSONResponse({"workers": [asdict(report) for report in admin.workers()]})

    return router


def writing(admin: Admin, bodies: Bodies) -> APIRouter:
    """Routes that take JSON."""
    router = APIRouter(route_class=json_route(bodies))

    @router.post("/workers/{worker}:drain")
    async def drain(worker: str, request: Request) -> Response:
        given(request, _NONE)
        drained = await admin.drain(request.state.operator, worker, _deadline(await request.json()))
        return JSONResponse(asdict(drained))

    return router
