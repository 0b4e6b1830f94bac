"""Adapters loaded and unloaded at run time, in vLLM's shapes, at its paths."""

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from router.edge.gate import Gate
from router.edge.http.body import Bodies, json_route
from router.edge.http.generate import error_docs
from router.tenancy.caller import OPEN_CALLER, Caller
from shared.errors import AlreadyExists, OctavoError, PermissionDenied

MAX_NAME = 256
MAX_PATH = 4_096

_NAMES = {"name": "lora_name", "source": "lora_path"}


class LoadBody(BaseModel):
    """An adapter to load."""

    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1, max_length=MAX_NAME, description="`name`, for all, or `tenant/name`.")
    lora_path: str = Field(
        "", max_length=MAX_PATH, description="A path, an address or a Hub id; empty: its name in the adapter directory."
    )
    load_inplace: bool = Field(False, description="Replace what the name means now.")
    base_model_name: str | None = Field(None, description="A served name; may be left out where one model is served.")


class UnloadBody(BaseModel):
    """An adapter to unload."""

    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1, max_length=MAX_NAME, description="As it was loaded.")
    base_model_name: str | None = Field(None, description="A served name; may be left out where one model is served.")


class Changed(TypedDict):
    """The adapter's canonical name."""

    lora_name: str


def _caller(request: Request) -> Caller:
    """Raises PermissionDenied where nobody needs a key, and the call comes from another machine."""
    caller: Caller = request.state.caller
    host = request.client.host if request.client is not None else ""
    if caller is OPEN_CALLER and not _is_loopback(host):
        raise PermissionDenied("without keys, adapters are loaded and unloaded from this machine alone")
    return caller


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _named() -> Iterator[None]:
    """Errors name the fields of this API."""
    try:
        yield
    except AlreadyExists as error:
        message = f"{error.message}; load_inplace replaces it"
        raise AlreadyExists(message, param="lora_name", code=error.code) from error
    except OctavoError as error:
        if error.param not in _NAMES:
            raise
        param = _NAMES[error.param]
        raise type(error)(error.message, param=param, retry_after=error.retry_after, code=error.code) from error


def routes(gate: Gate, bodies: Bodies) -> APIRouter:
    """POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""
    router = APIRouter(prefix="/v1", tags=["adapters"], route_class=json_route(bodies))
    docs = error_docs(400, 401, 403, 404, 413, 415, 429, 503)

    @router.post("/load_lora_adapter", responses=docs)
    async def load(body: LoadBody, request: Request) -> Changed:
        """Load an adapter at every worker. Needs a key with the scope adapters (the tenant's own) or admin."""
        caller, model = _caller(request), body.base_model_name or ""
        with _named():
            report = await gate.operator.load(
                caller, body.lora_name, body.lora_path, model=model, replace=body.load_inplace
            )
        return {"lora_name": report.name}

    @router.post("/unload_lora_adapter", responses=docs)
    async def unload(body: UnloadBody, request: Request) -> Changed:
        """Unload an adapter from every worker; requests that run end on it. Needs a key as for loading."""
        with _named():
            name = await gate.operator.unload(_caller(request), body.lora_name, model=body.base_model_name or "")
        return {"lora_name": name}

    return router
