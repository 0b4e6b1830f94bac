"""HEAD: the answer to a GET of the same address, without its body, which the server below leaves out (RFC 9110, 9.3.2)."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Head:
    """ASGI middleware: routes see a GET."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
