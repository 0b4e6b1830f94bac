"""The official openai client against the whole stack."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.stack import RunningStack, until_at_rest

MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture
def client(stack: RunningStack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.http}/v1", api_key="unused", timeout=60, max_retries=0) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI, stack: RunningStack) -> None:
    assert [model.id for model in client.models.list()] == [stack.model]


def test_a_streamed_chat_is_the_whole_chat(client: openai.OpenAI, stack: RunningStack) -> None:
    asked = {"model": stack.model, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_four_seeded_choices_differ_and_come_again(client: openai.OpenAI, stack: RunningStack) -> None:
    asked = {"model": stack.model, "prompt": "Once", "max_tokens": 16, "n": 4, "seed": 11, "temperature": 1.0}
    first = client.completions.create(**asked)  # type: ignore[call-overload]
    again = client.completions.create(**asked)  # type: ignore[call-overload]
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 4
    assert [choice.text for choice in again.choices] == texts
    assert first.usage.completion_tokens == again.usage.completion_tokens


def test_logprobs_hold_the_sampled_token_and_descend(client: openai.OpenAI, stack: RunningStack) -> None:
    answer = client.chat.completions.create(
        model=stack.model, messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=5
    )  # type: ignore[call-overload]
    rows = answer.choices[0].logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    for row in rows:
        values = [top.logprob for top in row.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert row.logprob == pytest.approx(values[0])


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, stack: RunningStack) -> None:
    asked = {"model": stack.model, "prompt": "The quick", "max_tokens": 48, "temperature": 0}
    free = client.completions.create(**asked).choices[0].text  # type: ignore[call-overload]
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    stopped = client.completions.create(**asked, stop=[stop])  # type: ignore[call-overload]
    assert stopped.choices[0].text == free[: free.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    streamed = client.completions.create(**asked, stop=[stop], stream=True)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in streamed) == stopped.choices[0].text


def test_leaving_a_stream_frees_its_blocks(client: openai.OpenAI, stack: RunningStack) -> None:
    stream = client.completions.create(
        model=stack.model, prompt="Once", max_tokens=400, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    for address in stack.workers:
        load = until_at_rest(address)
        assert load.free_blocks == load.total_blocks


def test_a_wrong_parameter_is_named(client: openai.OpenAI, stack: RunningStack) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=stack.model, prompt="x", temperature=9)
    assert caught.value.param == "temperature"
