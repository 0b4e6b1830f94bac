"""The official OpenAI client against the real HTTP server."""

import asyncio
import json
from collections.abc import AsyncIterator

import openai
import pytest

from router.request import ChatPrompt, Ended, Message, Piece, TextPrompt, TokenPrompt
from shared.errors import ContextLengthExceeded, Overloaded, Unavailable
from tests.fakes.edges import HttpEdge, http_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import SEED, WORDS, FakeService

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    async with http_edge(FakeService()) as running:
        yield running


async def test_chat_answers_in_openais_shape(edge: HttpEdge) -> None:
    answer = await edge.openai.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.id == "chatcmpl-" + edge.service.generations[0].id
    assert answer.model == "tiny"
    assert answer.system_fingerprint == "octavo-1.2.3"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == len(WORDS)
    assert answer.usage.total_tokens == 5 + len(WORDS)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


async def test_chat_request_reaches_the_service_whole(edge: HttpEdge) -> None:
    content = [{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}]
    await edge.openai.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": content, "name": "ann"},
        ],
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop="END",
        max_completion_tokens=7,
        n=2,
        extra_body={"top_k": -1, "min_p": 0.1, "min_tokens": 3, "ignore_eos": True, "stop_token_ids": [4, 5]},
    )
    request = edge.service.requests[0]
    assert request.prompt == ChatPrompt(
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="one, two", name="ann"),
        )
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 0, 0.1)
    assert (sampling.seed, sampling.stop, sampling.max_tokens) == (2**64 - 1, ("END",), 7)
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (3, True, (4, 5))
    assert request.n == 2
    assert request.prompt_param == "messages"
    assert sampling.logprobs is None


async def test_fields_not_given_take_the_requests_own_defaults(edge: HttpEdge) -> None:
    await edge.http.post("/v1/chat/completions", json={"messages": HELLO, "temperature": None, "stop": None, "n": None})
    request = edge.service.requests[0]
    assert (request.model, request.n, request.timeout) == ("", 1, None)
    assert request.sampling.max_tokens is None
    assert request.sampling.temperature == 1.0


async def test_streamed_chat_joins_to_the_whole_text(edge: HttpEdge) -> None:
    stream = await edge.openai.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *told, last = chunks
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert told[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in told[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in told] == [None] * (len(told) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in told)
    assert last.choices == []
    assert last.usage.completion_tokens == len(WORDS)
    assert last.usage.prompt_tokens_details.cached_tokens == 2


async def test_stream_without_usage_ends_with_done_and_has_none(edge: HttpEdge) -> None:
    answer = await edge.http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all("usage" not in chunk for chunk in chunks)


async def test_an_answer_that_went_on_with_other_numbers_says_so(edge: HttpEdge) -> None:
    body = {"messages": HELLO, "stream": True}
    assert "octavo_resumed" not in (await edge.http.post("/v1/chat/completions", json=body)).text
    edge.service.resumed = "inexact"
    *events, _done, _ = (await edge.http.post("/v1/chat/completions", json=body)).text.split("\n\n")
    assert json.loads(events[-1].removeprefix("data: "))["octavo_resumed"] == "inexact"
    whole = (await edge.http.post("/v1/chat/completions", json={"messages": HELLO})).json()
    assert whole["octavo_resumed"] == "inexact"


async def test_n_choices_are_told_apart_whole_and_streamed(edge: HttpEdge) -> None:
    whole = await edge.openai.chat.completions.create(model="tiny", messages=HELLO, n=4)
    assert [(c.index, c.message.content) for c in whole.choices] == [(i, TEXT) for i in range(4)]
    assert whole.usage.completion_tokens == 4 * len(WORDS)
    stream = await edge.openai.chat.completions.create(model="tiny", messages=HELLO, n=4, stream=True)
    texts, roles, ends = [""] * 4, [0] * 4, [0] * 4
    async for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
        ends[choice.index] += choice.finish_reason == "stop"
    assert (texts, roles, ends) == ([TEXT] * 4, [1] * 4, [1] * 4)


async def test_chat_logprobs_have_bytes_and_alternatives(edge: HttpEdge) -> None:
    answer = await edge.openai.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=6
    )
    content = answer.choices[0].logprobs.content
    assert [row.token for row in content] == list(WORDS[:6])
    assert bytes(content[5].bytes).decode() == " déjà"
    assert [len(row.top_logprobs) for row in content] == [2] * 6
    assert content[0].top_logprobs[0].logprob == content[0].logprob == -0.5
    assert answer.choices[0].finish_reason == "length"


async def test_streamed_chat_logprobs_equal_the_whole_ones(edge: HttpEdge) -> None:
    ask = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 1}
    whole = await edge.openai.chat.completions.create(**ask)
    stream = await edge.openai.chat.completions.create(**ask, stream=True)
    rows = [row async for chunk in stream for row in chunk.choices[0].logprobs.content]
    assert rows == whole.choices[0].logprobs.content


async def test_completion_answers_in_openais_shape(edge: HttpEdge) -> None:
    answer = await edge.openai.completions.create(model="tiny", prompt="Say", max_tokens=3, logprobs=1)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("Once upon a", "length")
    assert choice.logprobs.tokens == ["Once", " upon", " a"]
    assert choice.logprobs.token_logprobs == [-0.5] * 3
    assert choice.logprobs.top_logprobs == [{"Once": -0.5}, {" upon": -0.5}, {" a": -0.5}]
    assert choice.logprobs.text_offset == [0, 4, 9]
    assert edge.service.requests[0].prompt == TextPrompt(text="Say")


async def test_streamed_completion_offsets_go_on_over_chunks(edge: HttpEdge) -> None:
    ask = {"model": "tiny", "prompt": "Say", "logprobs": 0, "n": 2}
    whole = await edge.openai.completions.create(**ask)
    stream = await edge.openai.completions.create(**ask, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    for index in range(2):
        mine = [choice for choice in chunks if choice.index == index]
        assert "".join(choice.text for choice in mine) == TEXT
        offsets = [offset for choice in mine for offset in choice.logprobs.text_offset]
        assert offsets == whole.choices[index].logprobs.text_offset


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [TextPrompt(text="a")]),
        ("", [TextPrompt(text="")]),
        (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
        ([1, 2, 3], [TokenPrompt(tokens=[1, 2, 3])]),
        ([[1], [2, 3]], [TokenPrompt(tokens=[1]), TokenPrompt(tokens=[2, 3])]),
    ],
)
async def test_prompts_of_every_form_become_requests(edge: HttpEdge, prompt: object, expected: object) -> None:
    await edge.openai.completions.create(model="tiny", prompt=prompt)
    assert [request.prompt for request in edge.service.requests] == expected


async def test_batched_prompts_give_choices_prompt_by_prompt() -> None:
    def echo(request):
        text = request.prompt.text
        ends = Ended(reason="stop")
        return [tuple(Piece(index=i, text=f"{text}{i}", tokens=(7,), ended=ends) for i in range(request.n))]

    async with http_edge(FakeService(script=echo)) as edge:
        ask = {"model": "tiny", "prompt": ["a", "b", "c"], "n": 2}
        whole = await edge.openai.completions.create(**ask)
        stream = await edge.openai.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    expected = [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1"), (4, "c0"), (5, "c1")]
    assert [(choice.index, choice.text) for choice in whole.choices] == expected
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 6)
    assert sorted((c.choices[0].index, c.choices[0].text) for c in chunks[:-1]) == expected
    assert len({chunk.id for chunk in chunks}) == 1
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 6)


async def test_one_failing_prompt_fails_the_batch_and_closes_the_rest() -> None:
    service = FakeService(hold_at=1)
    async with http_edge(service) as edge:
        asking = asyncio.create_task(edge.openai.completions.create(model="tiny", prompt=["a", "b"]))
        await until(lambda: len(service.generations) == 2)
        first, second = service.generations
        first.fail_at, first.failure = 1, Unavailable("the worker is gone")
        first.release.set()
        with pytest.raises(openai.InternalServerError) as caught:
            await asking
        assert caught.value.status_code == 503
        async with asyncio.timeout(10):
            await second.closed.wait()


async def test_stop_string_ends_the_text_before_it(edge: HttpEdge) -> None:
    answer = await edge.openai.chat.completions.create(model="tiny", messages=HELLO, stop=[" time", "never"])
    assert answer.choices[0].message.content == "Once upon a"
    assert answer.choices[0].finish_reason == "stop"
    assert edge.service.requests[0].sampling.stop == (" time", "never")


async def test_seed_not_given_is_left_to_the_service(edge: HttpEdge) -> None:
    await edge.openai.completions.create(model="tiny", prompt="a")
    await edge.openai.completions.create(model="tiny", prompt="a", seed=7)
    assert [generation.seed for generation in edge.service.generations] == [SEED, 7]


async def test_models_are_listed_and_retrieved() -> None:
    async with http_edge(FakeService(names=("org/tiny", "other"))) as edge:
        listed = await edge.openai.models.list()
        assert [model.id for model in listed.data] == ["org/tiny", "other"]
        model = await edge.openai.models.retrieve("org/tiny")
        assert (model.id, model.object, model.owned_by) == ("org/tiny", "model", "octavo")
        with pytest.raises(openai.NotFoundError) as caught:
            await edge.openai.models.retrieve("absent")
        assert caught.value.code == "model_not_found"


async def test_unknown_model_is_not_found(edge: HttpEdge) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await edge.openai.chat.completions.create(model="absent", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
async def test_overload_is_429_with_retry_after(edge: HttpEdge, stream: bool) -> None:
    edge.service.refuse = Overloaded("full", retry_after=1.2)
    with pytest.raises(openai.RateLimitError) as caught:
        await edge.openai.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.code == "overloaded"


async def test_a_stream_refused_before_its_first_token_keeps_its_status(edge: HttpEdge) -> None:
    edge.service.fail_at, edge.service.failure = 0, Unavailable("no worker", retry_after=3)
    with pytest.raises(openai.InternalServerError) as caught:
        await edge.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "3"


async def test_an_error_in_mid_stream_is_one_terminal_event(edge: HttpEdge) -> None:
    edge.service.fail_at, edge.service.failure = 2, Unavailable("the worker is gone")
    ask = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    answer = await edge.http.post("/v1/chat/completions", json=ask)
    *chunks, last, rest = answer.text.split("\n\n")
    assert (answer.status_code, len(chunks), rest) == (200, 2, "")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error == {"message": "the worker is gone", "type": "server_error", "param": None, "code": "unavailable"}
    with pytest.raises(openai.APIError, match="the worker is gone"):
        async for _ in await edge.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True):
            pass


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("failure", [Unavailable("the worker is gone"), RuntimeError("secret")], ids=["told", "untold"])
@pytest.mark.parametrize("fail_at", [0, 3, len(WORDS) - 1])
async def test_c29_an_error_is_never_inside_a_200(edge: HttpEdge, path: str, failure: Exception, fail_at: int) -> None:
    edge.service.fail_at, edge.service.failure = fail_at, failure
    ask = {"messages": HELLO, "prompt": ["a", "b"], "n": 2}
    status = 503 if isinstance(failure, Unavailable) else 500
    whole = await edge.http.post(path, json=ask)
    assert whole.status_code == status
    assert set(whole.json()) == {"error"}
    stream = await edge.http.post(path, json={**ask, "stream": True})
    assert "[DONE]" not in stream.text
    if stream.status_code == 200:
        *events, last, rest = stream.text.split("\n\n")
        assert (set(json.loads(last.removeprefix("data: "))), rest) == ({"error"}, "")
        assert all("error" not in json.loads(event.removeprefix("data: ")) for event in events)
    else:
        assert (stream.status_code, fail_at) == (status, 0)


@pytest.mark.parametrize("fail_at", [0, 2])
async def test_our_own_fault_tells_nothing_of_its_inside(edge: HttpEdge, fail_at: int) -> None:
    edge.service.fail_at, edge.service.failure = fail_at, RuntimeError("secret")
    answer = await edge.http.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert answer.status_code == (500 if fail_at == 0 else 200)
    assert "secret" not in answer.text
    assert json.loads(answer.text.split("\n\n")[-2 if fail_at else 0].removeprefix("data: "))["error"] == {
        "message": "internal error",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


async def test_errors_name_parameters_as_the_caller_did(edge: HttpEdge) -> None:
    edge.service.refuse = ContextLengthExceeded("max_tokens is too large", param="max_tokens")
    with pytest.raises(openai.BadRequestError) as caught:
        await edge.openai.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=9999)
    assert caught.value.param == "max_completion_tokens"
    assert "max_completion_tokens is too large" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        await edge.openai.chat.completions.create(model="tiny", messages=HELLO, max_tokens=9999)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


async def test_silence_is_filled_with_comments() -> None:
    service = FakeService(hold_at=1)
    async with http_edge(service, keepalive=0.05) as edge:
        ask = {"prompt": "a", "stream": True}
        async with edge.http.stream("POST", "/v1/completions", json=ask) as answer:
            comments, seen = 0, ""
            async for text in answer.aiter_text():
                seen += text
                comments = seen.count(": keepalive\n\n")
                if comments >= 2:
                    service.generations[0].release.set()
        assert comments >= 2
        assert seen.endswith("data: [DONE]\n\n")


async def test_the_sync_client_streams_and_completes(edge: HttpEdge) -> None:
    def ask() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{edge.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model="tiny", messages=HELLO)
            stream = client.completions.create(model="tiny", prompt="a", stream=True)
            return whole.choices[0].message.content or "", "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(ask) == (TEXT, TEXT)
