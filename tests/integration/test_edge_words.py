"""What the HTTP API says of a wrong request is said in its own words: the parameter by its name, and what holds for it."""

from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from router.edge.http import errors
from tests.fakes.edges import http_app
from tests.fakes.service import FakeService
from tests.hostile.bodies import CHAT, HELLO, TEXT

PART = {"type": "text", "text": "a"}
SAID: list[tuple[str, dict[str, Any], str]] = [
    (TEXT, {}, "prompt is required"),
    (TEXT, {"prompt": 3}, "prompt must be a string or a list"),
    (TEXT, {"prompt": [1.5]}, "prompt[0] must be a string, an integer or a list"),
    (TEXT, {"prompt": ["a", 1]}, "prompt[1] must be a string"),
    (TEXT, {"prompt": ["a"] * 129}, "prompt takes at most 128 entries"),
    (TEXT, {"prompt": ["a"] * 128, "n": 5}, "prompts times n may be at most 512"),
    (CHAT, {"messages": HELLO * 4097}, "messages takes at most 4096 entries"),
    (CHAT, {"messages": [3]}, "messages[0] must be an object"),
    (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role is required"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a string or a list"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [PART] * 4097}]},
        "messages: the messages have more than 4096 parts",
    ),
    (CHAT, {"messages": HELLO, "stop": ["a"] * 17}, "stop takes at most 16 entries"),
    (CHAT, {"messages": HELLO, "stop": ["a" * 257]}, "stop strings may be at most 256 characters long"),
    (CHAT, {"messages": HELLO, "stream": "yes"}, "stream must be true or false"),
    (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature must be a number"),
    (CHAT, {"messages": HELLO, "seed": 1.5}, "seed must be an integer"),
    (CHAT, {"messages": HELLO, "stop_token_ids": [1] * 65}, "stop_token_ids takes at most 64 entries"),
    (CHAT, {"messages": HELLO, "allowed_token_ids": [1] * 4097}, "allowed_token_ids takes at most 4096 entries"),
    (CHAT, {"messages": HELLO, "bad_words": [[1] * 33]}, "bad_words[0] takes at most 32 entries"),
    (CHAT, {"messages": HELLO, "cache_salt": "x" * 257}, "cache_salt may be at most 256 characters long"),
    (CHAT, {"messages": HELLO, "prompt_cache_key": "x" * 257}, "prompt_cache_key may be at most 256 characters long"),
    (CHAT, {"messages": HELLO, "prompt_cache_key": 7}, "prompt_cache_key must be a string"),
    (CHAT, {"messages": HELLO, "echo": True}, "echo is a parameter of /v1/completions alone"),
    (CHAT, {"messages": HELLO, "best_of": 2}, "best_of is a parameter of /v1/completions alone"),
]


@pytest.mark.parametrize(("path", "body", "said"), SAID, ids=[said for _, _, said in SAID])
async def test_a_refusal_is_in_words_of_our_own(path: str, body: dict[str, Any], said: str) -> None:
    async with http_app(FakeService()) as client:
        answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, said)


async def test_a_number_beyond_doubles_must_be_finite() -> None:
    async with http_app(FakeService()) as client:
        answer = await client.post(TEXT, content=b'{"prompt": "a", "temperature": 1e999}')
    assert answer.json()["error"]["message"] == "temperature must be a finite number"


OTHER_METHODS = [
    ("GET", TEXT, ("POST",)),
    ("DELETE", "/v1/models", ("GET", "HEAD")),
    ("PUT", "/v1/models/a/b", ("GET", "HEAD")),
    ("POST", "/", ("GET", "HEAD")),
    ("PUT", "/v1/adapters/a", ("DELETE", "GET", "HEAD", "PATCH")),
]


@pytest.mark.parametrize(("method", "path", "allowed"), OTHER_METHODS)
async def test_another_method_is_told_which_there_are(method: str, path: str, allowed: tuple[str, ...]) -> None:
    async with http_app(FakeService()) as client:
        answer = await client.request(method, path)
    error = {"type": "invalid_request_error", "param": None, "code": "method_not_allowed"}
    error["message"] = f"{method} is not a method of {path}, which takes {' or '.join(allowed)}"
    assert (answer.status_code, answer.json()) == (405, {"error": error})
    assert answer.headers["allow"] == ", ".join(allowed)


async def test_the_methods_of_all_routes_to_a_path_are_told() -> None:
    app = FastAPI()
    for method in ("PUT", "GET"):
        app.add_api_route("/things/{name}", lambda name: name, methods=[method])
    errors.install(app)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://app") as client:
        answer = await client.delete("/things/a")
    assert answer.headers["allow"] == "GET, HEAD, PUT"
    assert answer.json()["error"]["message"] == "DELETE is not a method of /things/a, which takes GET or HEAD or PUT"
