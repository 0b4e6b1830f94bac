"""In front of every route but the server's own: who calls is known before a byte of the body is read."""

from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from router.edge.credentials import API_KEY, AUTHORIZATION, credentials_of
from router.edge.gate import Gate
from router.edge.http.errors import to_response
from router.tenancy.caller import Caller
from shared.errors import InvalidRequest, OctavoError
from shared.redact import KEY_MARK

# Asked by probes and people, and the same for everyone. Whatever else there is, or will be, needs a key.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs"})

GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

_KEY_NAMES = frozenset(
    {"authorization", "api_key", "api-key", "apikey", "x-api-key", "key", "token", "access_token", "bearer"}
)
_MOST_FIELDS = 100


def _values(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in headers if key == wanted]


def check_query(query: bytes) -> None:
    """A key in an address would stand in logs and histories on its way: it is refused, right or not."""
    text = query.decode("latin-1")
    plain = unquote(text)
    try:
        names = {name.lower() for name, _ in parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)}
    except ValueError as error:
        raise InvalidRequest("the address has too many parameters") from error
    if KEY_MARK in plain or names & _KEY_NAMES:
        raise InvalidRequest("send the API key in the Authorization header, never in an address")


class Guard:
    """ASGI middleware. Puts the `caller` into the request's state."""

    def __init__(self, app: ASGIApp, gate: Gate):
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        door = self._gate.door
        try:
            caller = self._caller(scope)
            await (door.enter if scope["path"] in GENERATING_PATHS else door.pass_by)(caller)
        except OctavoError as error:
            response = to_response(error)
            response.headers["connection"] = "close"  # its body is not read
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        if scope["query_string"]:
            check_query(scope["query_string"])
        headers = scope["headers"]
        return self._gate.authenticate(credentials_of(_values(headers, AUTHORIZATION), _values(headers, API_KEY)))
