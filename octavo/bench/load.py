"""A closed loop of streaming clients on an OpenAI-compatible /v1/completions: each sends its next request when the last has ended."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from octavo.bench.metrics import Timeline
from octavo.bench.workload import Item, Workload
from octavo.client.credentials import key_of
from shared.errors import OctavoError, Unavailable
from shared.redact import redact

_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a run: a timeline of each request that was answered, and the errors of those that were not."""

    timelines: tuple[Timeline, ...]
    errors: tuple[str, ...]


class RequestFailed(OctavoError):
    """The server refused a request, or broke off."""

    code = "request_failed"


def body(item: Item, model: str) -> dict[str, Any]:
    """The request: greedy, of a fixed length, with the counts at the end."""
    return {
        "model": model,
        "prompt": list(item.prompt),
        "max_tokens": item.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to [DONE]. Raises RequestFailed for an error event, or a stream that ends without [DONE]."""
    async for line in response.content:
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            return
        event = json.loads(data)
        if "error" in event:
            raise RequestFailed(str(event["error"].get("message")))
        yield event
    raise RequestFailed("the stream ended without [DONE]")


def _unheard(_moment: float) -> None:
    """A piece that nobody waits for."""


async def _timeline(response: aiohttp.ClientResponse, start: float, on_piece: Callable[[float], None]) -> Timeline:
    pieces: list[float] = []
    usage: dict[str, int] = {}
    async for event in _events(response):
        # An end without text is no piece; an answer without any text has one all the same.
        if event["choices"] and (event["choices"][0]["text"] or not pieces):
            pieces.append(time.perf_counter())
            on_piece(pieces[-1])
        usage = event.get("usage") or usage
    if not pieces or not usage:
        raise RequestFailed("the stream told no tokens, or no usage")
    return Timeline(
        start=start,
        pieces=tuple(pieces),
        end=time.perf_counter(),
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
    )


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """What the server said, in its own words where they have OpenAI's shape."""
    text = redact(await response.text())
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return f"HTTP {response.status}: {text[:300]}"


async def request(
    session: aiohttp.ClientSession, item: Item, model: str, on_piece: Callable[[float], None] = _unheard
) -> Timeline:
    """One request, to its end; `on_piece` hears of each piece when it comes. Raises RequestFailed."""
    start = time.perf_counter()
    async with session.post("/v1/completions", json=body(item, model)) as response:
        if response.status != 200:
            raise RequestFailed(await _refusal(response))
        return await _timeline(response, start, on_piece)


async def _client(
    session: aiohttp.ClientSession, items: Iterator[Item], model: str, timelines: list[Timeline], errors: list[str]
) -> None:
    for item in items:
        try:
            timelines.append(await request(session, item, model))
        except (RequestFailed, aiohttp.ClientError) as error:
            errors.append(str(error) or type(error).__name__)


def session(url: str, api_key: str | None = None) -> aiohttp.ClientSession:
    """Connections to one server, as many as there are clients, without a limit on how long an answer takes. `api_key`: see `key_of`."""
    key = key_of(api_key)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(base_url=url, connector=connector, timeout=timeout, headers=headers)


async def run(client: aiohttp.ClientSession, workload: Workload, model: str, concurrency: int) -> Outcome:
    """Sends the whole workload, `concurrency` requests at a time."""
    items = iter(workload.items)
    timelines: list[Timeline] = []
    errors: list[str] = []
    await asyncio.gather(*(_client(client, items, model, timelines, errors) for _ in range(concurrency)))
    return Outcome(timelines=tuple(timelines), errors=tuple(errors))


async def only_model(client: aiohttp.ClientSession) -> str:
    """The name of the first model served. Raises Unavailable where there is none, or no server, RequestFailed where it refuses."""
    try:
        async with client.get("/v1/models") as response:
            if response.status != 200:
                raise RequestFailed(await _refusal(response))
            models = (await response.json())["data"]
    except aiohttp.ClientError as error:
        raise Unavailable(f"no answer from the server: {error}") from error
    if not models:
        raise Unavailable("the server serves no model")
    return str(models[0]["id"])
