"""Requests that are wrong in any known way are answered 4xx, naming the parameter, and never reach the service."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.edges import MAX_BODY, HttpEdge, http_app, http_edge
from tests.fakes.service import FakeService

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "a", **fields}


# path, body, the parameter that the answer names
WRONG: list[tuple[str, Any, str | None]] = [
    (CHAT, [], None),
    (CHAT, "text", None),
    (CHAT, 5, None),
    (CHAT, None, None),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": "Hello"}, "messages"),
    (CHAT, {"messages": {}}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": ["Hello"]}, "messages[0]"),
    (CHAT, {"messages": [None]}, "messages[0]"),
    (CHAT, {"messages": [{}]}, "messages[0].role"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [*HELLO, {"role": 1, "content": "x"}]}, "messages[1].role"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
    (CHAT, {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, chat(model=1), "model"),
    (CHAT, chat(model=["tiny"]), "model"),
    (CHAT, chat(stream="true"), "stream"),
    (CHAT, chat(stream=1), "stream"),
    (CHAT, chat(stream_options={"include_usage": True}), "stream_options"),
    (CHAT, chat(stream=True, stream_options=[]), "stream_options"),
    (CHAT, chat(stream=True, stream_options={"include_usage": "yes"}), "stream_options.include_usage"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(n=-1), "n"),
    (CHAT, chat(n=65), "n"),
    (CHAT, chat(n=1.5), "n"),
    (CHAT, chat(n="2"), "n"),
    (CHAT, chat(n=True), "n"),
    (CHAT, chat(n=10**30), "n"),
    (CHAT, chat(temperature=-0.1), "temperature"),
    (CHAT, chat(temperature=2.1), "temperature"),
    (CHAT, chat(temperature="1"), "temperature"),
    (CHAT, chat(temperature=True), "temperature"),
    (CHAT, chat(temperature=10**400), "temperature"),
    (CHAT, chat(temperature=[]), "temperature"),
    (CHAT, chat(top_p=0), "top_p"),
    (CHAT, chat(top_p=1.01), "top_p"),
    (CHAT, chat(top_p={}), "top_p"),
    (CHAT, chat(top_k=-2), "top_k"),
    (CHAT, chat(top_k=2**32), "top_k"),
    (CHAT, chat(top_k=1.0), "top_k"),
    (CHAT, chat(min_p=-0.5), "min_p"),
    (CHAT, chat(min_p=2), "min_p"),
    (CHAT, chat(seed=2**64), "seed"),
    (CHAT, chat(seed=-(2**63) - 1), "seed"),
    (CHAT, chat(seed="1"), "seed"),
    (CHAT, chat(seed=0.5), "seed"),
    (CHAT, chat(max_tokens=0), "max_tokens"),
    (CHAT, chat(max_tokens=-5), "max_tokens"),
    (CHAT, chat(max_tokens=2**40), "max_tokens"),
    (CHAT, chat(max_tokens="9"), "max_tokens"),
    (CHAT, chat(max_completion_tokens=0), "max_completion_tokens"),
    (CHAT, chat(max_completion_tokens=1, max_tokens=2), "max_completion_tokens"),
    (CHAT, chat(min_tokens=-1), "min_tokens"),
    (CHAT, chat(min_tokens=5, max_tokens=4), "min_tokens"),
    (CHAT, chat(stop=""), "stop"),
    (CHAT, chat(stop=["a", ""]), "stop"),
    (CHAT, chat(stop=5), "stop"),
    (CHAT, chat(stop=["a", 5]), "stop[1]"),
    (CHAT, chat(stop=["a"] * 17), "stop"),
    (CHAT, chat(stop="a" * 257), "stop"),
    (CHAT, chat(stop_token_ids=[-1]), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=[2**32]), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=["a"]), "stop_token_ids[0]"),
    (CHAT, chat(stop_token_ids=list(range(65))), "stop_token_ids"),
    (CHAT, chat(stop_token_ids=3), "stop_token_ids"),
    (CHAT, chat(ignore_eos="no"), "ignore_eos"),
    (CHAT, chat(logprobs=1), "logprobs"),
    (CHAT, chat(logprobs="true"), "logprobs"),
    (CHAT, chat(top_logprobs=3), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (CHAT, chat(add_generation_prompt="no"), "add_generation_prompt"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(tool_choice={"type": "function"}), "tool_choice"),
    (CHAT, chat(functions=[{}]), "functions"),
    (CHAT, chat(response_format={"type": "json_object"}), "response_format"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {}}), "response_format"),
    (CHAT, chat(logit_bias={"1": 1}), "logit_bias"),
    (CHAT, chat(presence_penalty=0.1), "presence_penalty"),
    (CHAT, chat(frequency_penalty=-1), "frequency_penalty"),
    (CHAT, chat(repetition_penalty=1.1), "repetition_penalty"),
    (CHAT, chat(modalities=["text", "audio"]), "modalities"),
    (CHAT, chat(audio={"voice": "x"}), "audio"),
    (CHAT, chat(reasoning_effort="high"), "reasoning_effort"),
    (CHAT, chat(chat_template="{{ 1 }}"), "chat_template"),
    (CHAT, chat(guided_json={}), "guided_json"),
    (TEXT, {}, "prompt"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": 5}, "prompt"),
    (TEXT, {"prompt": {}}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": ["a", 1]}, "prompt[1]"),
    (TEXT, {"prompt": [1, "a"]}, "prompt[1]"),
    (TEXT, {"prompt": [1, True]}, "prompt[1]"),
    (TEXT, {"prompt": [1.5]}, "prompt[0]"),
    (TEXT, {"prompt": [[1], ["a"]]}, "prompt[1][0]"),
    (TEXT, {"prompt": [None]}, "prompt[0]"),
    (TEXT, {"prompt": ["a"] * 129}, "prompt"),
    (TEXT, {"prompt": ["a"] * 128, "n": 64}, "n"),
    (TEXT, text(logprobs=21), "logprobs"),
    (TEXT, text(logprobs=-1), "logprobs"),
    (TEXT, text(logprobs=True), "logprobs"),
    (TEXT, text(echo=True), "echo"),
    (TEXT, text(suffix="x"), "suffix"),
    (TEXT, text(best_of=2), "best_of"),
    (TEXT, text(best_of="x"), "best_of"),
    (TEXT, text(n=2, best_of=3), "best_of"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_wrong_parameter_is_named(path: str, body: object, param: str | None) -> None:
    service = FakeService()
    async with http_app(service) as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert len(answer.text) < 1_000
    assert service.requests == []


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
        ("GET", "/", 404, "not_found"),
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
