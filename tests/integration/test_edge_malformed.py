"""Requests that are wrong in any known way are answered 4xx, naming the parameter, and never reach the service."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.edges import MAX_BODY, HttpEdge, http_app, http_edge
from tests.fakes.service import FakeService
from tests.hostile.bodies import CHAT, HELLO, TEXT, chat, wrong_bodies


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


@dataclass(frozen=True, kw_only=True)
class App:
    """The application, made once for a whole table."""

    service: FakeService
    client: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    service = FakeService()
    async with http_app(service) as client:
        yield App(service=service, client=client)


@pytest.mark.parametrize(("path", "body", "param"), [*wrong_bodies()], ids=lambda value: str(value)[:60])
@pytest.mark.asyncio(loop_scope="module")
async def test_wrong_parameter_is_named(path: str, body: object, param: str | None, app: App) -> None:
    app.service.requests.clear()
    answer = await app.client.post(path, content=json.dumps(body))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert len(answer.text) < 1_000
    assert app.service.requests == []


NEUTRAL: list[dict[str, Any]] = [
    {"tools": [], "tool_choice": "none", "functions": [], "response_format": {"type": "text"}, "logit_bias": {}},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "best_of": 1, "echo": False},
    {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "who_knows": [{}]},
    dict.fromkeys(("tools", "response_format", "logit_bias", "n", "stop", "temperature", "max_tokens", "seed")),
    {"model": "tiny", "stream": False, "stream_options": None, "top_logprobs": 0, "logprobs": None},
]


@pytest.mark.parametrize("extra", NEUTRAL)
async def test_parameters_that_ask_for_nothing_are_taken(extra: dict[str, Any], edge: HttpEdge) -> None:
    answer = await edge.http.post(CHAT, json=chat(**extra))
    assert answer.status_code == 200


BROKEN = [
    b"",
    b"{",
    b"nonsense",
    b'{"prompt": "a"',
    b'{"prompt": "a"} x',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
    b"{'prompt': 'a'}",
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:30]))
async def test_a_body_that_is_not_json_is_400(body: bytes, edge: HttpEdge) -> None:
    answer = await edge.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert edge.service.requests == []


async def test_a_number_beyond_doubles_is_400_naming_it(edge: HttpEdge) -> None:
    body = b'{"prompt": "a", "temperature": 1e999}'
    answer = await edge.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


async def test_too_large_bodies_are_413_by_length_and_by_counting(edge: HttpEdge) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY // 1000 + 2):
            yield b"x" * 1000

    json_type = {"content-type": "application/json"}
    for content in (b"x" * (MAX_BODY + 1), chunks()):
        answer = await edge.http.post(TEXT, content=content, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    prompt = "x" * (MAX_BODY - 100)
    assert (await edge.http.post(TEXT, json={"prompt": prompt})).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"])
async def test_other_content_types_are_415(kind: str, edge: HttpEdge) -> None:
    answer = await edge.http.post(TEXT, content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json", ""])
async def test_json_content_types_are_taken(kind: str, edge: HttpEdge) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = await edge.http.post(TEXT, content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/absent", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("POST", "/v2/completions", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/absent", 404, "model_not_found"),
    ],
)
async def test_routes_that_are_not_there_answer_in_openais_shape(
    method: str, path: str, status: int, code: str, edge: HttpEdge
) -> None:
    answer = await edge.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["model", "messages", "prompt", "stream", "stream_options", "n", "temperature", "top_p", "top_k", "min_p", "seed"],
) | st.sampled_from(
    ["stop", "max_tokens", "logprobs", "top_logprobs", "max_completion_tokens", "min_tokens", "ignore_eos", "echo"],
)


@given(path=st.sampled_from([CHAT, TEXT]), fields=st.dictionaries(NAMES, JSON, max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_json_makes_a_server_error(path: str, fields: dict[str, Any], edge: HttpEdge) -> None:
    edge.service.requests.clear()
    answer = await edge.http.post(path, content=json.dumps({"messages": HELLO, "prompt": "a", **fields}))
    assert answer.status_code in (200, 400, 404)
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] is None or answer.json()["error"]["param"].partition(".")[0]
        assert edge.service.requests == []
