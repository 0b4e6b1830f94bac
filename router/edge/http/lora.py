"""Adapters loaded and unloaded at run time, in vLLM's shapes, at its paths."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from router.edge.gate import Gate
from router.edge.http.adapters import MAX_NAME, MAX_PATH, caller_of
from router.edge.http.body import Bodies, json_route
from router.edge.http.generate import error_docs
from shared.errors import OctavoError

_NAMES = {"name": "lora_name", "source": "lora_path", "model": "base_model_name"}


class LoraLoadBody(BaseModel):
    """An adapter to load, as vLLM's clients send it."""

    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1, max_length=MAX_NAME, description="`name`, for all, or `tenant/name`.")
    lora_path: str = Field("", max_length=MAX_PATH, description="As `source`.")
    load_inplace: bool = Field(False, description="Replace what the name means now.")
    base_model_name: str | None = Field(None, description="A served name; may be left out where one model is served.")


class LoraUnloadBody(BaseModel):
    """An adapter to unload, as vLLM's clients send it."""

    model_config = ConfigDict(strict=True)

    lora_name: str = Field(min_length=1, max_length=MAX_NAME, description="As it was loaded.")
    base_model_name: str | None = Field(None, description="A served name; may be left out where one model is served.")


class Changed(TypedDict):
    """The adapter's canonical name."""

    lora_name: str


@contextmanager
def _named() -> Iterator[None]:
    """Errors name the fields of vLLM's API."""
    try:
        yield
    except OctavoError as error:
        if error.param not in _NAMES:
            raise
        message, param = error.message.replace("`replace`", "`load_inplace`"), _NAMES[error.param]
        raise type(error)(message, param=param, retry_after=error.retry_after, code=error.code) from error


def routes(gate: Gate, bodies: Bodies) -> APIRouter:
    """/v1/load_lora_adapter and /v1/unload_lora_adapter."""
    router = APIRouter(prefix="/v1", tags=["adapters"], route_class=json_route(bodies))
    docs = error_docs(400, 401, 403, 404, 413, 415, 429, 503)

    @router.post("/load_lora_adapter", responses=docs)
    async def load_lora(body: LoraLoadBody, request: Request) -> Changed:
        """As POST /v1/adapters."""
        caller, model = caller_of(request), body.base_model_name or ""
        with _named():
            report = await gate.operator.load(
                caller, body.lora_name, body.lora_path, model=model, replace=body.load_inplace
            )
        return {"lora_name": report.name}

    @router.post("/unload_lora_adapter", responses=docs)
    async def unload_lora(body: LoraUnloadBody, request: Request) -> Changed:
        """As DELETE /v1/adapters/{name}."""
        with _named():
            name = await gate.operator.unload(caller_of(request), body.lora_name, model=body.base_model_name or "")
        return {"lora_name": name}

    return router
