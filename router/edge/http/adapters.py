"""Adapters that come and go at run time: listed, loaded, pinned and unloaded."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from router.adapters.report import AdapterAt, AdapterReport
from router.edge.gate import Gate
from router.edge.http.body import Bodies, json_route
from router.edge.http.generate import error_docs
from router.edge.local import require_local
from router.tenancy.caller import Caller
from shared.errors import InvalidRequest

MAX_NAME = 256
MAX_PATH = 4_096


class LoadBody(BaseModel):
    """An adapter to load."""

    model_config = ConfigDict(strict=True)

    name: str = Field(min_length=1, max_length=MAX_NAME, description="`name`, for all, or `tenant/name`.")
    source: str = Field(
        "", max_length=MAX_PATH, description="A path, an address or a Hub id; empty: its name in the adapter directory."
    )
    model: str = Field("", max_length=MAX_NAME, description="Its base's name; may be left out where one is served.")
    replace: bool = Field(False, description="Replace what the name means now.")
    pin: bool = Field(False, description="Keep it in memory. Needs a key with the scope admin.")


class PinBody(BaseModel):
    """What is to change of an adapter."""

    model_config = ConfigDict(strict=True)

    pinned: bool = Field(description="Whether it is kept in every worker's memory.")
    model: str = Field("", max_length=MAX_NAME, description="Its base's name; may be left out where one is served.")


class AtWorker(TypedDict):
    """An adapter at one worker. `level` is absent, source (known by name), host (in memory) or device (in a slot)."""

    worker: str
    level: str
    digest: str
    bytes: int
    pinned: bool
    loaded: int
    error: str


class Adapter(TypedDict):
    """A name, and how it is at each worker. Times are Unix seconds. `digest`, `rank` and `bytes` are of what requests get."""

    id: str
    object: str
    parent: str
    digest: str
    rank: int
    bytes: int
    pinned: bool
    loaded: int
    registered: bool
    source: str
    workers: list[AtWorker]


class AdapterList(TypedDict):
    """All that the caller sees."""

    object: str
    data: list[Adapter]


class Deleted(TypedDict):
    """It is unloaded."""

    id: str
    object: str
    deleted: bool


def _at(at: AdapterAt) -> AtWorker:
    info = at.info
    return {
        "worker": at.worker,
        "level": info.level.name.lower() if info else "absent",
        "digest": info.digest.hex() if info else "",
        "bytes": info.bytes if info else 0,
        "pinned": info.pinned if info else False,
        "loaded": info.loaded_unix_ms // 1000 if info else 0,
        "error": at.error,
    }


def _adapter(report: AdapterReport) -> Adapter:
    return {
        "id": report.name,
        "object": "adapter",
        "parent": report.model,
        "digest": report.digest.hex(),
        "rank": report.rank,
        "bytes": report.bytes,
        "pinned": report.pinned,
        "loaded": report.loaded_unix_ms // 1000,
        "registered": report.registered,
        "source": report.source,
        "workers": [_at(at) for at in report.workers],
    }


def caller_of(request: Request) -> Caller:
    """Raises PermissionDenied where nobody needs a key, and the call comes from another machine."""
    return require_local(request.state.caller, request.client.host if request.client is not None else "")


def _name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"name must have at most {MAX_NAME} characters", param="name")
    return name


def routes(gate: Gate, bodies: Bodies) -> APIRouter:
    """/v1/adapters and /v1/adapters/{name}; a name may hold a slash."""
    router = APIRouter(prefix="/v1", tags=["adapters"])
    router.include_router(_with_bodies(gate, bodies))

    @router.get("/adapters", responses=error_docs(401, 403))
    async def list_adapters(request: Request, model: str = "") -> AdapterList:
        """Every adapter that the caller sees, and how it is at each worker. Needs a key with the scope adapters or admin."""
        reports = gate.operator.list(caller_of(request), model=model)
        return {"object": "list", "data": list(map(_adapter, reports))}

    @router.get("/adapters/{name:path}", responses=error_docs(400, 401, 403, 404))
    async def get_adapter(name: str, request: Request, model: str = "") -> Adapter:
        """One of these, and how it is at each worker. Needs a key as for listing."""
        return _adapter(gate.operator.get(caller_of(request), _name(name), model=model))

    @router.delete("/adapters/{name:path}", responses=error_docs(400, 401, 403, 404, 503))
    async def unload(name: str, request: Request, model: str = "") -> Deleted:
        """Unload an adapter from every worker; requests that run end on it. Needs a key as for loading."""
        gone = await gate.operator.unload(caller_of(request), _name(name), model=model)
        return {"id": gone, "object": "adapter", "deleted": True}

    return router


def _with_bodies(gate: Gate, bodies: Bodies) -> APIRouter:
    router = APIRouter(route_class=json_route(bodies))
    docs = error_docs(400, 401, 403, 404, 413, 415, 429, 503)

    @router.post("/adapters", responses=docs)
    async def load(body: LoadBody, request: Request) -> Adapter:
        """Load an adapter at every worker, or at none. Needs a key with the scope adapters (the tenant's own) or admin."""
        report = await gate.operator.load(
            caller_of(request), body.name, body.source, model=body.model, replace=body.replace, pin=body.pin
        )
        return _adapter(report)

    @router.patch("/adapters/{name:path}", responses=docs)
    async def change(name: str, body: PinBody, request: Request) -> Adapter:
        """Pin an adapter at every worker, or not any more. Needs a key with the scope admin."""
        return _adapter(await gate.operator.pin(caller_of(request), _name(name), body.pinned, model=body.model))

    return router
