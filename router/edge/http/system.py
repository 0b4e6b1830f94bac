"""What is served, and how the server is: models, health, readiness, version, metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from router.edge.gate import Gate
from router.edge.http import answers
from router.edge.http.generate import error_docs
from router.service import ModelCard
from shared.errors import ModelNotFound


def _model(card: ModelCard) -> answers.Model:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "octavo",
        "max_model_len": card.max_model_len,
    }


def model_routes(gate: Gate) -> APIRouter:
    """/v1/models and /v1/models/{id}; an id may hold slashes."""
    router = APIRouter(prefix="/v1", tags=["models"])

    @router.get("/models", responses=error_docs(401))
    async def list_models(request: Request) -> answers.ModelList:
        """Every served model that the caller sees."""
        return {"object": "list", "data": [_model(card) for card in gate.models(request.state.caller)]}

    @router.get("/models/{model_id:path}", responses=error_docs(401, 404))
    async def get_model(model_id: str, request: Request) -> answers.Model:
        """One served model."""
        found = next((card for card in gate.models(request.state.caller) if card.id == model_id), None)
        if found is None:
            raise ModelNotFound(f"the model {model_id[:200]!r} does not exist", param="model")
        return _model(found)

    return router


def state_routes(gate: Gate, registry: CollectorRegistry, version: str) -> APIRouter:
    """/health, /ready, /version and /metrics."""
    router = APIRouter(tags=["server"])

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
        """Prometheus' or OpenMetrics' text, as the scraper asks."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": media_type})

    return router
