"""One exception tree, and one table from it to gRPC status, HTTP status and the API's error body.

A client's fault is a 4xx that names the parameter. Anything that is not an OctavoError is our fault and answers 500 / INTERNAL.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shared.redact import redact

MOST_WORDS = 2_000  # characters


def _sendable(text: str) -> str:
    """Half of a surrogate pair, as JSON may hold, is no text that any wire takes."""
    cut = text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}..."
    return redact(cut if cut.isascii() else cut.encode("utf-8", "backslashreplace").decode())


class OctavoError(Exception):
    """Base of all errors that a caller may see. `param` names the request's field at fault; `retry_after` is in seconds.

    No API key stands in its words, whoever wrote it where; and they can always be sent: they are Unicode, and not over MOST_WORDS long.
    """

    code = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None, code: str | None = None
    ):
        self.message = _sendable(message)
        super().__init__(self.message)
        self.param = None if param is None else _sendable(param)
        self.retry_after = retry_after
        self.code = code or type(self).code

    @property
    def retry_after_ms(self) -> int | None:
        """`retry_after` in whole milliseconds, rounded up: whoever comes back a moment early is refused again."""
        return None if self.retry_after is None else math.ceil(1000 * self.retry_after)


class InvalidRequest(OctavoError):
    """The request can never be right as it is."""

    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and wanted output, do not fit the model's context or the worker's memory."""

    code = "context_length_exceeded"


class RequestTooLarge(InvalidRequest):
    """The request's body is larger than the server reads."""

    code = "request_too_large"


class Unauthenticated(OctavoError):
    """No key, or one that is not valid."""

    code = "invalid_api_key"


class PermissionDenied(OctavoError):
    """A valid key without the right to do this."""

    code = "permission_denied"


class NotFound(OctavoError):
    """No such model or route, or none that the caller may see."""

    code = "not_found"


class ModelNotFound(NotFound):
    """No such model, or none that the caller may see."""

    code = "model_not_found"


class AlreadyExists(OctavoError):
    """An id that is in use."""

    code = "already_exists"


class Conflict(OctavoError):
    """It has changed since the caller read it."""

    code = "conflict"


class Overloaded(OctavoError):
    """Every queue is full; try again after `retry_after` seconds."""

    code = "overloaded"


class RateLimited(Overloaded):
    """The tenant's own limits do not allow it before `retry_after` seconds. `rates` are headers that tell how they stand."""

    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        code: str | None = None,
        rates: Mapping[str, str] | None = None,
    ):
        super().__init__(message, param=param, retry_after=retry_after, code=code)
        self.rates = rates or {}


class Unavailable(OctavoError):
    """No live worker can serve this, or the one that did is gone."""

    code = "unavailable"


class DeadlineExceeded(OctavoError):
    """The request's time ran out."""

    code = "deadline_exceeded"


class Cancelled(OctavoError):
    """The caller left."""

    code = "cancelled"


class Internal(OctavoError):
    """Our fault."""

    code = "internal_error"


@dataclass(frozen=True, slots=True)
class Answer:
    """How one kind of error is told: gRPC status (its name), HTTP status, and the `type` of OpenAI's error body."""

    grpc: str
    http: int
    type: str


_ANSWERS: dict[type[OctavoError], Answer] = {
    RequestTooLarge: Answer("INVALID_ARGUMENT", 413, "invalid_request_error"),
    InvalidRequest: Answer("INVALID_ARGUMENT", 400, "invalid_request_error"),
    Unauthenticated: Answer("UNAUTHENTICATED", 401, "authentication_error"),
    PermissionDenied: Answer("PERMISSION_DENIED", 403, "permission_error"),
    NotFound: Answer("NOT_FOUND", 404, "invalid_request_error"),
    AlreadyExists: Answer("ALREADY_EXISTS", 409, "invalid_request_error"),
    Conflict: Answer("ABORTED", 409, "invalid_request_error"),
    Overloaded: Answer("RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
    Unavailable: Answer("UNAVAILABLE", 503, "server_error"),
    DeadlineExceeded: Answer("DEADLINE_EXCEEDED", 504, "server_error"),
    Cancelled: Answer("CANCELLED", 499, "server_error"),
    OctavoError: Answer("INTERNAL", 500, "server_error"),
}


def answer(error: OctavoError) -> Answer:
    """The table's row for `error`: its own class's, or that of the nearest base."""
    return next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)


def from_exception(error: BaseException) -> OctavoError:
    """`error` itself where callers may see it; anything else becomes an Internal that tells nothing of its inside."""
    return error if isinstance(error, OctavoError) else Internal("internal error")


def body(error: OctavoError) -> dict[str, dict[str, str | None]]:
    """OpenAI's error body."""
    fields = {"message": error.message, "type": answer(error).type, "param": error.param, "code": error.code}
    return {"error": fields}
