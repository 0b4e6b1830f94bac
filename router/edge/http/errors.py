"""Every error as OpenAI's body: {"error": {message, type, param, code}}."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pydantic_core
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException

from router.edge.http import faults
from shared import errors
from shared.redact import redact

_LOG = logging.getLogger(__name__)

_CODES = {
    "missing": "missing_required_parameter",
    "finite_number": "invalid_value",
    "too_short": "invalid_value",
    "too_long": "invalid_value",
}


def _headers(error: errors.OctavoError) -> dict[str, str]:
    """Retry-After in whole seconds (rounded up) and milliseconds, where the error knows when to come again; an end where the body was not
    read; a tenant's rates where they are at fault."""
    unread = isinstance(error, errors.RequestTooLarge) and error.param is None
    told = dict(error.rates) if isinstance(error, errors.RateLimited) else {}
    if isinstance(error, errors.Unauthenticated):
        told["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        told |= {
            "Retry-After": str(max(1, math.ceil(error.retry_after))),
            "retry-after-ms": str(error.retry_after_ms),
        }
    return told | ({"Connection": "close"} if unread else {})


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Makes errors of the block name parameters as the caller's API does."""
    try:
        yield
    except errors.OctavoError as error:
        old = error.param or ""
        if old not in names:
            raise
        message = error.message.replace(old, names[old], 1)
        raise type(error)(message, param=names[old], retry_after=error.retry_after, code=error.code) from error


def to_response(error: errors.OctavoError) -> Response:
    """The answer that tells `error`."""
    return Response(
        pydantic_core.to_json(errors.body(error)),
        status_code=errors.answer(error).http,
        headers=_headers(error),
        media_type="application/json",
    )


def _path(location: Sequence[int | str], body: object) -> tuple[int | str, ...]:
    """The steps of `location` that lead through `body`: what is left out are the names of a union's branches."""
    path: list[int | str] = []
    for step in location:
        inside = isinstance(body, Mapping) and step in body
        inside = inside or (isinstance(body, list) and isinstance(step, int) and step < len(body))
        if inside:
            path.append(step)
            body = body[step]  # type: ignore[index]
    return tuple(path)


def dotted(path: Sequence[int | str]) -> str:
    """messages[0].content, as OpenAI names a place in the body."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _steps(error: Mapping[str, Any], body: object) -> tuple[int | str, ...]:
    location = error["loc"][1:]
    path = _path(location, body)
    return (*path, location[-1]) if error["type"] == "missing" and location else path


def _progress(failure: Mapping[str, Any], path: Sequence[int | str]) -> tuple[bool, int, list[int]]:
    """How far a branch got: one that only had too many items liked all that it saw."""
    return failure["type"] == "too_long", len(path), [step for step in path if isinstance(step, int)]


def invalid_body(failures: Sequence[Mapping[str, Any]], body: object) -> errors.InvalidRequest:
    """The first parameter at fault. Where a union's branches all failed, the branch that got furthest knows best."""
    if not isinstance(body, Mapping):
        return errors.InvalidRequest("the body must be a JSON object", code="invalid_type")
    told = [(failure, _steps(failure, body)) for failure in failures]
    rivals = [each for each in told if each[1][:1] == told[0][1][:1]]
    furthest, path = max(rivals, key=lambda each: _progress(*each))
    equals = [failure for failure, steps in rivals if _progress(failure, steps) == _progress(furthest, path)]
    name = dotted(path)
    return errors.InvalidRequest(
        faults.message(equals, name), param=name, code=_CODES.get(furthest["type"], "invalid_type")
    )


def _status_error(error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = status.phrase.lower().replace(" ", "_")
    fields = {"message": redact(str(error.detail)), "type": kind, "param": None, "code": code}
    headers = dict(error.headers or {})
    return Response(
        pydantic_core.to_json({"error": fields}),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )


def _methods(request: Request) -> list[str]:
    """Those of all routes to the path; Starlette's own Allow knows the first route alone. What can be had by GET, HEAD asks about."""
    routes = [route for route in iter_route_contexts(request.app.routes) if route.path_regex.match(request.url.path)]
    methods = {method for route in routes for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def _method_error(request: Request) -> Response:
    methods = _methods(request)
    message = f"{request.method} is not a method of {request.url.path[:200]}, which takes {' or '.join(methods)}"
    return _status_error(HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": ", ".join(methods)}))


async def _on_octavo(_: Request, error: Exception) -> Response:
    return to_response(errors.from_exception(error))


async def _on_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return to_response(invalid_body(error.errors(), error.body))


async def _on_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return to_response(errors.NotFound(f"no route {request.method} {request.url.path[:200]}"))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return _method_error(request)
    return _status_error(error)


def install(app: FastAPI) -> None:
    """Makes every error of `app` an OpenAI body, those of routing and parsing included."""
    app.add_exception_handler(errors.OctavoError, _on_octavo)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_status)
    app.add_exception_handler(Exception, _on_octavo)
