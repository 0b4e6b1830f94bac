"""Streaming equals not streaming through the whole stack: 300 prompts in 12 scripts, with stop strings that begin and end inside tokens."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.client.aio import AsyncClient
from octavo.client.results import Completion
from tests.e2e.stack import RunningStack

TEXTS: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "integration" / "data" / "streaming_texts.json").read_text()
)
AT_ONCE = 16


async def streamed(client: AsyncClient, prompt: str, options: dict[str, Any]) -> Completion:
    async with await client.complete(prompt, stream=True, return_tokens=True, **options) as stream:
        shown = [delta.text async for delta in stream]
    completion = stream.completion()
    assert "".join(shown) == completion.text
    return completion


def pieces_of(random_: random.Random, text: str) -> list[str]:
    """Up to three stop strings out of a text, from and to any character."""
    starts = [random_.randrange(len(text)) for _ in range(3)] if text else []
    return [text[start : start + random_.randint(1, 9)] for start in starts]


def cut_at_first_match(text: str, stop: Sequence[str]) -> str:
    matches = [(text.find(string) + len(string), -len(string)) for string in stop if string in text]
    end, negative = min(matches, default=(len(text), 0))
    return text[: end + negative]


async def check(client: AsyncClient, number: int, prompt: str, options: dict[str, Any]) -> tuple[int, str]:
    """Whole, streamed and detokenized are one text, and so are both when stop strings cut them. The tokens' count, and the text."""
    asked = {**options, "seed": number}
    whole = (await client.complete(prompt, return_tokens=True, **asked)).choices[0]
    assert (await streamed(client, prompt, asked)).choices[0] == whole
    assert await client.detokenize(whole.tokens, skip_special_tokens=True) == whole.text
    stop = pieces_of(random.Random(number), whole.text)
    if stop:
        stopped = (await client.complete(prompt, stop=stop, return_tokens=True, **asked)).choices[0]
        assert stopped.text == cut_at_first_match(whole.text, stop)
        assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
        assert (await streamed(client, prompt, {**asked, "stop": stop})).choices[0] == stopped
    return len(whole.tokens), whole.text


async def check_all(address: str, prompts: Sequence[str], options: dict[str, Any]) -> list[tuple[int, str]]:
    room = asyncio.Semaphore(AT_ONCE)
    async with AsyncClient(address, timeout=120) as client:

        async def one(number: int, prompt: str) -> tuple[int, str]:
            async with room:
                return await check(client, number, prompt, options)

        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))


async def test_300_prompts_in_12_scripts_give_one_text_streamed_and_whole(stack: RunningStack) -> None:
    """A random model at a high temperature: most of what it says are broken characters."""
    prompts = [text for texts in TEXTS.values() for text in texts]
    assert len(prompts) == 300
    found = await check_all(stack.grpc, prompts, {"temperature": 2.0, "max_tokens": 32, "ignore_eos": True})
    assert all(tokens == 32 for tokens, _ in found)
    assert sum("\ufffd" in text for _, text in found) > 100


@pytest.mark.timeout(600)
async def test_a_real_model_gives_one_text_streamed_and_whole_in_every_script(demo_stack: RunningStack) -> None:
    prompts = [text for texts in TEXTS.values() for text in (texts[3], texts[16])]
    found = await check_all(demo_stack.grpc, prompts, {"temperature": 1.3, "max_tokens": 16, "ignore_eos": True})
    assert len({text for _, text in found}) == len(prompts)


async def _posted(client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
    answer = await client.post("/v1/completions", json=asked)
    text: str = answer.raise_for_status().json()["choices"][0]["text"]
    return text


async def _posted_stream(client: httpx.AsyncClient, asked: dict[str, Any]) -> str:
    """By httpx's lines, which end at more characters than the standard's do."""
    async with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as answer:
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


async def test_over_http_a_stream_of_events_is_the_whole_text(stack: RunningStack) -> None:
    prompts = [text for texts in TEXTS.values() for text in texts[::3]]
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=120) as client:

        async def one(number: int, prompt: str) -> None:
            asked = {"model": stack.model, "prompt": prompt, "seed": number, "temperature": 2, "max_tokens": 32}
            async with room:
                whole = await _posted(client, asked)
                assert await _posted_stream(client, asked) == whole
                stop = [string for string in pieces_of(random.Random(number), whole) if string]
                if stop:
                    stopped = cut_at_first_match(whole, stop)
                    assert await _posted(client, {**asked, "stop": stop}) == stopped
                    assert await _posted_stream(client, {**asked, "stop": stop}) == stopped

        await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
