"""In front of every route of the operators' API: nothing of a request is read before its key is known to be an admin's."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from router.admin.service import Admin, Call, Operator
from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.http.errors import to_response
from router.edge.http.guard import check_query
from shared.errors import OctavoError

OPEN_PATHS = frozenset({"/health"})


class AdminGuard:
    """ASGI middleware. Puts the `operator` into the request's state. Its turns at reading bodies are its tenant's."""

    def __init__(self, app: ASGIApp, admin: Admin):
        self._app = app
        self._admin = admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                scope.setdefault("state", {})["operator"] = self._operator(scope)
            except OctavoError as error:
                response = to_response(error)
                response.headers["connection"] = "close"  # its body is not read
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _operator(self, scope: Scope) -> Operator:
        client = scope.get("client")
        asked = f"{scope['method']} {scope['path']!r}"
        return self._admin.operator(
            Call(credentials=lambda: _credentials(scope), origin=client[0] if client else "", asked=asked)
        )


def _credentials(scope: Scope) -> str | None:
    """The call's key. Raises InvalidRequest where there are several, or one stands in the address."""
    if scope["query_string"]:
        check_query(scope["query_string"])
    headers = Headers(scope=scope)
    return credentials_of(headers.getlist(AUTHORIZATION), headers.getlist(API_KEY))
