"""The HTTP application: OpenAI's API and the server's own endpoints, every error in OpenAI's shape."""

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from router.edge.gate import Gate
from router.edge.http import adapters, errors, generate, lora, reference, system, tokens
from router.edge.http.access import Access
from router.edge.http.body import Bodies
from router.edge.http.guard import Guard
from router.edge.http.head import Head
from router.edge.http.reply import Settings
from router.exposition import Alone, Exposition

_ABOUT = """
OpenAI's API, served by Octavo. Fields marked *extension* are not OpenAI's. Fields that this server does not know are
ignored; fields that it knows, cannot serve, and that would change the output, are refused. `null` means "not given".
"""

# Requests are recorded by `Access`, once, as the gRPC edge records its own.
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


def make_app(
    gate: Gate,
    registry: CollectorRegistry,
    *,
    version: str,
    max_body_bytes: int,
    keepalive: float = 15.0,
    tenants: CollectorRegistry | None = None,
    exposition: Exposition | None = None,
) -> ASGIApp:
    """The application. `keepalive`: seconds of silence after which a stream gets a comment. `tenants`: metrics that name tenants.

    `exposition` is what /metrics shows, where that is more than this process's.
    """
    app = FastAPI(
        title="Octavo",
        version=version,
        description=_ABOUT,
        strict_content_type=False,
        redirect_slashes=False,  # the redirection would be to whatever the Host header says
        docs_url=None,
        redoc_url=None,
        telemetry=NO_TELEMETRY,
    )
    settings = Settings(fingerprint=f"octavo-{version}", keepalive=keepalive)
    bodies = Bodies(limit=max_body_bytes)
    app.include_router(generate.routes(gate, settings, bodies))
    app.include_router(tokens.routes(gate, bodies))
    app.include_router(adapters.routes(gate, bodies))
    app.include_router(lora.routes(gate, bodies))
    app.include_router(system.model_routes(gate))
    app.include_router(
        system.state_routes(gate, exposition or Alone(registry, tenants or CollectorRegistry()), version)
    )
    app.include_router(reference.routes(app.openapi))
    errors.install(app)
    return Access(Guard(Head(app), gate))
