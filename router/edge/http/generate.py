"""The routes that generate."""

from typing import Any

import pydantic_core
from fastapi import APIRouter, Request, Response

from router.edge.gate import Gate
from router.edge.http import answers, chat, completions
from router.edge.http.body import Bodies, json_route
from router.edge.http.errors import renaming
from router.edge.http.fields import NAMES, Origin
from router.edge.http.reply import Call, Reply, Settings
from router.tenancy.turnstile import Turnstile

PARSED_AT_ONCE = 2  # bodies, between two looks at what else has come

_ERRORS = {
    400: "A parameter is wrong, or not served; the error names it.",
    401: "No API key, or none that is valid.",
    403: "The API key is not for this.",
    404: "No such model.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "A limit of the tenant is reached, or every queue is full; see Retry-After.",
    503: "No worker can serve this now; see Retry-After.",
    504: "The request's time ran out.",
}


def error_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of these error statuses, and of any other."""
    told: dict[int | str, str] = {status: _ERRORS[status] for status in statuses}
    told["default"] = "Any other error has the same shape."
    return {status: {"model": answers.ErrorBody, "description": text} for status, text in told.items()}


def _docs(whole: Any, chunk: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """A whole answer, or a stream whose events look like `chunk`."""
    event = f"data: {pydantic_core.to_json(chunk).decode()}\n\ndata: [DONE]\n\n"
    stream = {"schema": {"type": "string"}, "example": event}
    answer = {"model": whole, "description": "JSON, or with `stream` server-sent events."}
    return {200: {**answer, "content": {"text/event-stream": stream}}, **error_docs(*_ERRORS)}


def _chunk(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    ended = {"index": 0, "logprobs": None, "finish_reason": None}
    return {"id": "...", "object": kind, "created": 0, "model": "...", "choices": [{**ended, **choice}]}


_CHAT_DOCS = _docs(answers.ChatCompletion, _chunk("chat.completion.chunk", {"delta": {"content": "Hello"}}))
_COMPLETION_DOCS = _docs(answers.Completion, _chunk("text_completion", {"text": "Hello"}))


def _origin(request: Request) -> Origin:
    state = request.state
    return Origin(caller=state.caller, request_id=state.request_id, traceparent=state.traceparent)


def routes(gate: Gate, settings: Settings, bodies: Bodies) -> APIRouter:
    """/v1/chat/completions and /v1/completions."""
    router = APIRouter(prefix="/v1", tags=["generate"], route_class=json_route(bodies, Turnstile(PARSED_AT_ONCE)))

    @router.post("/chat/completions", responses=_CHAT_DOCS)
    async def chat_completions(body: chat.ChatBody, request: Request) -> Response:
        """Answer a conversation, rendered by the model's own template."""
        names = chat.names_of(body)
        with renaming(names):
            call = Call(
                requests=chat.requests_of(body, _origin(request)),
                shape=chat.ChatShape(logprobs=bool(body.logprobs), prompt_logprobs=body.prompt_logprobs),
                stream=bool(body.stream),
                include_usage=body.wants_usage(),
                names=names,
            )
        return Reply(gate, call, settings)

    @router.post("/completions", responses=_COMPLETION_DOCS)
    async def text_completions(body: completions.CompletionBody, request: Request) -> Response:
        """Continue each prompt. Choices are numbered prompt by prompt."""
        with renaming(NAMES):
            call = Call(
                requests=completions.requests_of(body, _origin(request)),
                shape=completions.CompletionShape(completions.told_of(body)),
                stream=bool(body.stream),
                include_usage=body.wants_usage(),
                names=NAMES,
            )
        return Reply(gate, call, settings)

    return router
