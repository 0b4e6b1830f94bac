"""Cases reported against other engines (`engine_cases.md`, by number), through the whole stack."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo.client.aio import AsyncClient
from octavo.client.results import Completion
from shared.errors import Overloaded
from tests.e2e.stack import RunningStack

SEEDS = range(6)
OUTPUTS = 100  # of each request of the flood: more than is done while it comes in
FLOOD = 340  # requests at once: more than the router queues for one tenant


async def _streamed(client: AsyncClient, prompt: str | Sequence[int], **options: Any) -> Completion:
    async with await client.complete(prompt, stream=True, return_tokens=True, **options) as stream:
        async for _ in stream:
            pass
    return stream.completion()


@pytest.fixture
async def client(stack: RunningStack) -> Any:
    async with AsyncClient(stack.grpc, timeout=60) as made:
        yield made


async def test_c27_one_request_id_twice_at_a_time_is_two_requests(client: AsyncClient) -> None:
    options: Any = {"request_id": "same", "max_tokens": 40, "ignore_eos": True, "seed": 3, "return_tokens": True}
    one, other = await asyncio.gather(client.complete("Once", **options), client.complete("Once", **options))
    assert one.id != other.id
    assert one.choices == other.choices
    assert len(one.choices[0].tokens) == 40


@pytest.mark.parametrize("seed", SEEDS)
async def test_c32_deltas_of_random_bytes_join_to_the_decoded_tokens(client: AsyncClient, seed: int) -> None:
    """A random model at a high temperature gives every kind of broken character."""
    options: Any = {"seed": seed, "temperature": 2.0, "max_tokens": 120, "ignore_eos": True}
    streamed = (await _streamed(client, "né 你", **options)).choices[0]
    whole = (await client.complete("né 你", return_tokens=True, **options)).choices[0]
    assert streamed == whole
    assert whole.text == await client.detokenize(whole.tokens, skip_special_tokens=True)


@pytest.mark.parametrize("seed", SEEDS)
async def test_c33_a_stop_string_is_found_wherever_tokens_cut_it(client: AsyncClient, seed: int) -> None:
    options: Any = {"seed": seed, "temperature": 1.0, "max_tokens": 80, "ignore_eos": True}
    free = (await client.complete("The quick", **options)).text
    start = len(free) // 3 + seed
    stops = [free[start : start + 4], free[start + 2 : start + 9]]
    first = min(free.index(stop) + len(stop) for stop in stops)
    expected = min((free[: free.index(stop)] for stop in stops if free.index(stop) + len(stop) == first), key=len)
    streamed = await _streamed(client, "The quick", stop=stops, **options)
    whole = await client.complete("The quick", stop=stops, return_tokens=True, **options)
    assert streamed.choices == whole.choices
    assert whole.choices[0].text == expected
    assert whole.choices[0].stop_string in stops
    assert whole.usage.completion_tokens == len(whole.choices[0].tokens)


@pytest.mark.parametrize("seed", SEEDS)
async def test_c34_stop_strings_end_callers_that_read_token_ids_alone(
    stack: RunningStack, client: AsyncClient, seed: int
) -> None:
    """Ids in and ids out: the last is the one that completes the match, as where text is read, and no other is counted."""
    prompt = (17, 300, 45, 9 + seed)
    options: Any = {"seed": seed, "temperature": 1.0, "max_tokens": 80, "ignore_eos": True}
    free = (await client.complete(prompt, return_tokens=True, **options)).choices[0]
    stop = free.text[len(free.text) // 2 :][:3]
    whole = await client.complete(prompt, return_tokens=True, stop=stop, **options)
    streamed = await _streamed(client, prompt, stop=stop, **options)
    assert whole.choices == streamed.choices
    tokens = whole.choices[0].tokens
    made = len(tokens)
    assert tokens == free.tokens[:made]
    assert stop in await client.detokenize(tokens)
    assert stop not in await client.detokenize(tokens[:-1])
    assert (whole.choices[0].finish_reason, whole.choices[0].stop_string) == ("stop", stop)
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens == made < 80
    asked: Any = {"model": stack.model, "prompt": list(prompt), "stop": stop, **options}
    async with httpx.AsyncClient(base_url=f"http://{stack.http}", timeout=60) as http:
        answer = (await http.post("/v1/completions", json=asked)).json()
    assert answer["choices"][0]["text"] == whole.choices[0].text
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == made


@pytest.mark.parametrize("stop", [(), ("e", "a")])
async def test_c39_usage_is_equal_streamed_and_whole_over_both_apis(
    stack: RunningStack, client: AsyncClient, stop: tuple[str, ...]
) -> None:
    options: Any = {"seed": 5, "temperature": 1.0, "max_tokens": 30, "n": 3, "stop": list(stop)}
    await client.complete("The quick brown fox jumps over the lazy dog", **options)
    whole = await client.complete("The quick brown fox jumps over the lazy dog", return_tokens=True, **options)
    streamed = await _streamed(client, "The quick brown fox jumps over the lazy dog", **options)
    made = sum(len(choice.tokens) for choice in whole.choices)
    assert whole.choices == streamed.choices
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens == made
    asked: Any = {"model": stack.model, "prompt": "The quick brown fox jumps over the lazy dog", **options}
    async with openai.AsyncOpenAI(base_url=f"http://{stack.http}/v1", api_key="unused", timeout=60) as http:
        over_http = await http.completions.create(**asked)
        chunks = [
            c async for c in await http.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        ]
    counts = {(u.prompt_tokens, u.completion_tokens) for u in (over_http.usage, chunks[-1].usage)}
    assert counts == {(whole.usage.prompt_tokens, made)}
    texts = {choice.index: choice.text for choice in over_http.choices}
    assert texts == {choice.index: choice.text for choice in whole.choices}


@pytest.fixture(scope="module")
def crowded(tiny_model: Path) -> Iterator[RunningStack]:
    """Four slots and eight waiting places."""
    small = (
        "--threads",
        "1",
        "--kv-memory",
        "16MiB",
        "--max-model-len",
        "512",
        "--max-running",
        "4",
        "--max-waiting",
        "8",
    )
    running = RunningStack(tiny_model, workers=1, worker_arguments=small)
    yield running
    assert running.stop() == 0, running.said()


async def test_c19_a_flood_is_bounded_refused_with_retry_after_and_who_was_accepted_is_answered(
    crowded: RunningStack,
) -> None:
    body = {"model": crowded.model, "prompt": [5], "max_tokens": OUTPUTS, "ignore_eos": True}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://{crowded.http}", timeout=90, limits=limits) as http:
        answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(FLOOD)))
    refused = [answer for answer in answers if answer.status_code == 429]
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(accepted) == FLOOD
    assert refused
    assert accepted
    assert all(float(answer.headers["retry-after"]) > 0 for answer in refused)
    assert all(answer.json()["error"]["type"] == "rate_limit_error" for answer in refused)
    assert all(answer.json()["usage"]["completion_tokens"] == OUTPUTS for answer in accepted)
    async with AsyncClient(crowded.grpc, timeout=90) as client:
        calls = (client.complete([5], max_tokens=OUTPUTS, ignore_eos=True) for _ in range(FLOOD))
        ends = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(end) for end in ends} == {Completion, Overloaded}
    assert all(end.retry_after is not None for end in ends if isinstance(end, Overloaded))
