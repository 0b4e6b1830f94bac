"""What is served, and how the server is: models, health, readiness, version, metrics."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder

from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.gate import Gate
from router.edge.http import answers
from router.edge.http.generate import error_docs
from router.exposition import Exposition
from router.service import ModelCard
from router.tenancy.records import Scope
from shared.errors import ModelNotFound, Unauthenticated


def _model(card: ModelCard) -> answers.Model:
    model: answers.Model = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "octavo",
        "max_model_len": card.max_model_len,
    }
    return {**model, "parent": card.parent} if card.parent else model


def model_routes(gate: Gate) -> APIRouter:
    """/v1/models and /v1/models/{id}; an id may hold slashes."""
    router = APIRouter(prefix="/v1", tags=["models"])

    @router.get("/models", responses=error_docs(401))
    async def list_models(request: Request) -> answers.ModelList:
        """Every served model that the caller sees."""
        return {"object": "list", "data": [_model(card) for card in gate.models(request.state.caller)]}

    @router.get("/models/{model_id:path}", responses=error_docs(401, 404, 503))
    async def get_model(model_id: str, request: Request) -> answers.Model:
        """What a request with this `model` would get, under the name by which it is listed."""
        if not model_id:  # in a request: the only one
            raise ModelNotFound("name a model, as in /v1/models/NAME", param="model")
        return _model(gate.model(model_id, request.state.caller))

    return router


def _sees_tenants(gate: Gate, request: Request) -> bool:
    """Whether the counters that name tenants are for this caller: an admin's, or anyone's where there are no tenants.

    Raises Unauthenticated for a key that is none; no key at all is no fault here.
    """
    key = credentials_of(request.headers.getlist(AUTHORIZATION), request.headers.getlist(API_KEY))
    try:
        return Scope.ADMIN in gate.authenticate(key).scopes
    except Unauthenticated:
        if key is None:
            return False
        raise


def state_routes(gate: Gate, exposition: Exposition, version: str) -> APIRouter:
    """/, /health, /ready, /version and /metrics."""
    router = APIRouter(tags=["server"])

    @router.get("/")
    async def about() -> dict[str, str]:
        """What this server is, and where its API is described."""
        return {"service": "octavo", "version": version, "docs": "/docs", "openapi": "/openapi.json"}

    @router.get("/health")
    async def health() -> dict[str, str]:
        """This process is alive."""
        return {"status": "alive"}

    @router.get("/ready", responses={503: {"description": "No worker can serve, or this server is shutting down."}})
    async def ready() -> Response:
        """A request could be served now."""
        ok = gate.ready()
        return JSONResponse({"status": "ready" if ok else "not ready"}, status_code=200 if ok else 503)

    @router.get("/version")
    async def get_version() -> dict[str, str]:
        """The version of this router."""
        return {"version": version}

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus' or OpenMetrics' text, as the scraper asks. Counters that name tenants need an admin's key."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        shown: Any = await exposition.shown(_sees_tenants(gate, request))
        return Response(encode(shown), headers={"content-type": media_type})

    return router
