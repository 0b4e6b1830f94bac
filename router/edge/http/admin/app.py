"""The operators' HTTP application: /admin/v1 and /health, every error in the public API's shape."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from router.admin.service import Admin
from router.edge.http import errors
from router.edge.http.access import Access
from router.edge.http.admin import books, prefixes, tenants, workers
from router.edge.http.admin.guard import AdminGuard
from router.edge.http.app import NO_TELEMETRY
from router.edge.http.body import Bodies
from router.edge.http.head import Head

PREFIX = "/admin/v1"


def make_admin_app(admin: Admin, *, max_body_bytes: int) -> ASGIApp:
    """The application."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, telemetry=NO_TELEMETRY, redirect_slashes=False)
    bodies = Bodies(limit=max_body_bytes)
    app.include_router(tenants.writing(admin, bodies), prefix=PREFIX)
    app.include_router(tenants.reading(admin), prefix=PREFIX)
    app.include_router(prefixes.writing(admin, bodies), prefix=PREFIX)
    app.include_router(prefixes.reading(admin), prefix=PREFIX)
    app.include_router(books.routes(admin), prefix=PREFIX)
    app.include_router(workers.reading(admin), prefix=PREFIX)
    app.include_router(workers.writing(admin, bodies), prefix=PREFIX)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    errors.install(app)
    return Access(AdminGuard(Head(app), admin))
