"""What the HTTP edge sends is exactly what its schema says, and no more."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from router.edge.http import answers
from tests.fakes.edges import http_app
from tests.fakes.service import FakeService

CHAT = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2, "n": 2}
TEXT = {"prompt": "a", "logprobs": 1, "n": 2}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def exactly(shape: Any, value: Any) -> None:
    """Raises where `value` has another shape, or keys that the shape does not."""
    TypeAdapter(shape).validate_python(value, strict=True, extra="forbid")


def events(text: str) -> list[Any]:
    *lines, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("extra", [{}, {"logprobs": None, "top_logprobs": None}])
async def test_chats_have_their_schemas_shape(extra: dict[str, Any]) -> None:
    async with http_app(FakeService()) as client:
        whole = await client.post("/v1/chat/completions", json={**CHAT, **extra})
        stream = await client.post("/v1/chat/completions", json={**CHAT, **extra, **USAGE})
    exactly(answers.ChatCompletion, whole.json())
    for event in events(stream.text):
        exactly(answers.ChatCompletionChunk, event)


@pytest.mark.parametrize("extra", [{}, {"logprobs": None}])
async def test_completions_have_their_schemas_shape(extra: dict[str, Any]) -> None:
    async with http_app(FakeService()) as client:
        whole = await client.post("/v1/completions", json={**TEXT, **extra})
        stream = await client.post("/v1/completions", json={**TEXT, **extra, **USAGE})
    exactly(answers.Completion, whole.json())
    for event in events(stream.text):
        exactly(answers.Completion, event)


async def test_models_and_errors_have_their_schemas_shape() -> None:
    async with http_app(FakeService()) as client:
        exactly(answers.ModelList, (await client.get("/v1/models")).json())
        exactly(answers.Model, (await client.get("/v1/models/tiny")).json())
        exactly(answers.ErrorBody, (await client.get("/v1/models/absent")).json())
        exactly(answers.ErrorBody, (await client.get("/absent")).json())
        exactly(answers.ErrorBody, (await client.post("/v1/completions", json={})).json())


def test_a_key_too_many_is_seen() -> None:
    with pytest.raises(ValidationError):
        exactly(answers.ModelList, {"object": "list", "data": [{"id": "a"}]})
    with pytest.raises(ValidationError):
        exactly(answers.PromptDetails, {"cached_tokens": 1, "more": 2})
