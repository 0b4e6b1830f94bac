"""Every option of the HTTP API through the official openai client, against a whole stack."""

import concurrent.futures
import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stack import RunningStack
from tests.fakes.tiny_models import EOS, SPECIALS

CONTEXT = 512  # of the stack's model, in tokens
MESSAGES = [{"role": "user", "content": "Once upon a time, où es-tu?"}]


@pytest.fixture
def client(stack: RunningStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key="unused", timeout=60, max_retries=0) as client:
        yield client


@pytest.fixture
def http(stack: RunningStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{stack.http}", timeout=60) as client:
        yield client


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    """A greedy completion unless `fields` say otherwise."""
    return client.completions.create(
        **{"model": "", "prompt": "Once upon", "temperature": 0, "max_tokens": 8, **fields}
    )


def ids_of(http: httpx.Client, **fields: Any) -> list[int]:
    """Token ids of a text or a conversation."""
    tokens: list[int] = http.post("/tokenize", json=fields).json()["tokens"]
    return tokens


def test_c36_logprobs_alone_are_valid_and_every_row_has_its_token_and_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=12, logprobs=True)
    rows = answer.choices[0].logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    assert all(row.top_logprobs == [] and row.logprob <= 0 for row in rows)
    assert all(
        bytes(row.bytes).decode(errors="replace") == row.token for row in rows if not row.token.startswith("bytes:")
    )


def test_c36_alternatives_descend_and_the_sampled_token_is_always_there(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="", messages=MESSAGES, max_tokens=40, temperature=2, seed=3, logprobs=True, top_logprobs=4
    )
    outside = 0
    for row in answer.choices[0].logprobs.content:
        values = [top.logprob for top in row.top_logprobs]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert row.token
        assert row.bytes
        outside += all(top.bytes != row.bytes for top in row.top_logprobs)
    assert outside, "no token was drawn from beyond the alternatives: the test shows nothing"


@pytest.mark.parametrize("token", range(len(SPECIALS)))
def test_c36_special_tokens_have_rows_too(client: openai.OpenAI, token: int) -> None:
    answer = client.chat.completions.create(
        model="",
        messages=MESSAGES,
        max_tokens=3,
        logprobs=True,
        top_logprobs=1,
        extra_body={"allowed_token_ids": [token], "ignore_eos": True},
    )
    rows = answer.choices[0].logprobs.content
    assert [row.token for row in rows] == [SPECIALS[token]] * 3
    assert [bytes(row.bytes).decode() for row in rows] == [SPECIALS[token]] * 3
    assert answer.choices[0].message.content == ""


def test_c36_streamed_rows_are_the_whole_ones(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "", "messages": MESSAGES, "max_tokens": 16, "temperature": 1, "seed": 5}
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    stream = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, stream=True)
    rows = [row for chunk in stream for c in chunk.choices if c.logprobs for row in c.logprobs.content]
    assert rows == whole.choices[0].logprobs.content


def test_an_echo_scores_what_was_generated_as_it_was_when_generated(client: openai.OpenAI, http: httpx.Client) -> None:
    made = complete(client, max_tokens=10, logprobs=0, extra_body={"ignore_eos": True})
    text = "Once upon" + made.choices[0].text
    prompt = ids_of(http, prompt="Once upon")
    generated = complete(client, max_tokens=10, logprobs=1, extra_body={"ignore_eos": True}).choices[0].logprobs
    ids = [*prompt, *ids_of(http, prompt=text)[len(prompt) :]]
    scored = complete(client, prompt=ids, max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == text
    assert scored.usage.completion_tokens == 0
    rows = scored.choices[0].logprobs
    assert rows.token_logprobs[0] is None
    assert rows.tokens[len(prompt) :] == generated.tokens, (
        "the text does not tokenize as it was generated: choose another"
    )
    assert rows.token_logprobs[len(prompt) :] == pytest.approx(generated.token_logprobs, abs=1e-4)
    assert "".join(rows.tokens) == text
    assert [text[start:].startswith(token) for start, token in zip(rows.text_offset, rows.tokens, strict=True)]


def test_an_echo_of_a_text_is_the_text_and_its_rows_begin_with_null(client: openai.OpenAI) -> None:
    answer = complete(client, prompt="The quick brown fox", echo=True, logprobs=2, max_tokens=3, n=2)
    for choice in answer.choices:
        assert choice.text.startswith("The quick brown fox")
        assert choice.logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
        assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + 3


def test_prompt_logprobs_hold_every_token_of_the_prompt(client: openai.OpenAI, http: httpx.Client) -> None:
    body = {"prompt": "The quick brown fox", "prompt_logprobs": 3, "max_tokens": 1}
    first = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    again = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    ids = ids_of(http, prompt="The quick brown fox")
    assert first[0] is None
    assert len(first) == len(ids)
    for token, row in zip(ids[1:], first[1:], strict=True):
        assert str(token) in row
        assert sorted(entry["rank"] for entry in row.values() if entry["rank"]) == [1, 2, 3]
    assert again == first


def test_sampling_options_do_what_they_say(client: openai.OpenAI, http: httpx.Client) -> None:
    free = complete(client)
    (first,) = ids_of(http, prompt=" the")[:1]
    forced = complete(client, logit_bias={str(first): 100}, max_tokens=4)
    assert forced.choices[0].text == " the" * 4
    only = complete(client, max_tokens=4, temperature=1, extra_body={"allowed_token_ids": [first]})
    assert only.choices[0].text == " the" * 4
    word = free.choices[0].text.split()[0] if free.choices[0].text.split() else free.choices[0].text
    without = complete(client, extra_body={"bad_words": [word]})
    assert word not in without.choices[0].text
    for options in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"extra_body": {"repetition_penalty": 5}}):
        biased = complete(client, logit_bias={str(first): 4}, max_tokens=24, extra_body={"ignore_eos": True})
        punished = complete(client, **_merged(options, first))
        assert punished.choices[0].text.count(" the") <= biased.choices[0].text.count(" the")


def _merged(options: dict[str, Any], token: int) -> dict[str, Any]:
    extra = {"ignore_eos": True, **options.get("extra_body", {})}
    return {**options, "logit_bias": {str(token): 4}, "max_tokens": 24, "extra_body": extra}


def test_min_tokens_hold_off_the_end(client: openai.OpenAI) -> None:
    ask = {"logit_bias": {str(EOS): 100}, "max_tokens": 9}
    assert complete(client, **ask).usage.completion_tokens == 1
    held = complete(client, **ask, extra_body={"min_tokens": 5})
    assert (held.usage.completion_tokens, held.choices[0].finish_reason) == (6, "stop")


def test_batched_prompts_have_their_own_answers_and_one_usage(client: openai.OpenAI, http: httpx.Client) -> None:
    texts = ["Once upon", "The quick", "def add("]
    alone = [complete(client, prompt=text) for text in texts]
    lists: list[Any] = [texts, [ids_of(http, prompt=text) for text in texts]]
    for prompts in lists:
        batch = complete(client, prompt=prompts, n=2)
        assert [choice.index for choice in batch.choices] == list(range(6))
        assert [choice.text for choice in batch.choices] == [a.choices[0].text for a in alone for _ in range(2)]
        assert batch.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone)
        assert batch.usage.completion_tokens == 2 * sum(each.usage.completion_tokens for each in alone)


def test_best_of_tells_the_likeliest(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"temperature": 1.5, "seed": 4, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    every = complete(client, **ask, n=6, logprobs=0).choices
    best = sorted(every, key=lambda choice: -math.fsum(choice.logprobs.token_logprobs))[:2]
    told = complete(client, **ask, n=2, best_of=6)
    assert [choice.text for choice in told.choices] == [choice.text for choice in best]
    assert told.usage.completion_tokens == 36


def test_a_prompt_that_is_too_long_is_named_and_truncation_keeps_its_end(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    text = "fox dog " * 400 + "The quick brown"
    for ask in (lambda: complete(client, prompt=text), lambda: _chat(client, text)):
        with pytest.raises(openai.BadRequestError) as caught:
            ask()
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param in ("prompt", "messages")
    kept = complete(client, prompt=text, extra_body={"truncate_prompt_tokens": 40})
    same = complete(client, prompt=ids_of(http, prompt=text)[-40:])
    assert kept.usage.prompt_tokens == 40
    assert kept.choices[0].text == same.choices[0].text
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, max_tokens=CONTEXT)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")


def _chat(client: openai.OpenAI, text: str) -> Any:
    return client.chat.completions.create(model="", messages=[{"role": "user", "content": text}])


def test_tokenize_and_detokenize_are_what_generation_uses(client: openai.OpenAI, http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"prompt": "Grüße 🙂", "unknown": 1}).json()
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == CONTEXT
    assert http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "Grüße 🙂"}
    chat = ids_of(http, messages=MESSAGES)
    answer = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=8, temperature=0)
    same = complete(client, prompt=chat)
    assert answer.usage.prompt_tokens == len(chat)
    assert answer.choices[0].message.content == same.choices[0].text


def test_parts_of_text_are_one_text(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Once upon a time, "}, {"type": "text", "text": "où es-tu?"}]
    ask: dict[str, Any] = {"model": "", "max_completion_tokens": 8, "temperature": 0}
    apart = client.chat.completions.create(**ask, messages=[{"role": "user", "content": parts}])
    whole = client.chat.completions.create(**ask, messages=MESSAGES)
    assert apart.choices[0].message.content == whole.choices[0].message.content
    assert apart.usage.completion_tokens <= 8


def test_a_stream_tells_usage_only_where_asked(client: openai.OpenAI) -> None:
    with_usage = [*complete(client, stream=True, stream_options={"include_usage": True})]
    assert [chunk.usage is not None for chunk in with_usage] == [False] * (len(with_usage) - 1) + [True]
    assert with_usage[-1].choices == []
    assert all(chunk.usage is None for chunk in complete(client, stream=True))
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, stream_options={"include_usage": True})
    assert caught.value.param == "stream_options"


def test_equal_request_ids_are_two_requests(client: openai.OpenAI) -> None:
    def ask(_: int) -> Any:
        return complete(client, max_tokens=48, extra_headers={"x-request-id": "same"})

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert len({answer.id for answer in answers}) == 4
    assert len({answer.choices[0].text for answer in answers}) == 1


@pytest.mark.parametrize(
    "fields", [{"suffix": "x"}, {"best_of": 65}, {"logprobs": 21}, {"extra_body": {"guided_json": {}}}]
)
def test_what_is_not_served_is_named(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **fields)
    assert caught.value.param == next(iter(fields.get("extra_body", fields)))
    assert caught.value.body["type"] == "invalid_request_error"  # type: ignore[index]


def test_unknown_fields_are_ignored(client: openai.OpenAI) -> None:
    extra = {
        "metadata": {"a": "b"},
        "store": True,
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "safety_identifier": "u",
    }
    answer = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=2, user="u", extra_body=extra)
    assert answer.choices
