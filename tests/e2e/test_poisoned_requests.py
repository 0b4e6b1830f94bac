"""A request that cannot work fails alone, in one typed error; its neighbours' streams are bit for bit what they are without it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from octavo.client.aio import AsyncClient
from octavo.client.results import Choice
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared import rpc
from shared.errors import Internal, InvalidRequest, OctavoError
from tests.e2e.stack import RunningStack, until_at_rest
from tests.fakes.poisoned import LOOPS, NO_TOKEN, RAISES, Poisoned, write_poisoned_llama

WORKER = ("--threads", "1", "--kv-memory", "1MiB", "--max-model-len", "512", "--check-integrity")
NEIGHBOURS = 6
LONG = 200  # tokens of a neighbour
NOT_FINITE = "logits are not finite"


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Poisoned:
    return write_poisoned_llama(tmp_path_factory.mktemp("models") / "poisoned")


@pytest.fixture(scope="module")
def stack(poisoned: Poisoned) -> Iterator[RunningStack]:
    """One worker, so that all are neighbours."""
    running = RunningStack(poisoned.path, workers=1, worker_arguments=WORKER)
    yield running
    assert running.stop() == 0, running.said()


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.grpc, timeout=60) as made:
        yield made


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{stack.http}/v1", timeout=60) as made:
        yield made


async def neighbour(
    client: AsyncClient, poisoned: Poisoned, number: int, started: asyncio.Event | None = None
) -> Choice:
    """One that streams and never draws the poison."""
    prompt = [3 + (number * 37 + i * 11) % 200 for i in range(5 + 9 * number)]
    stream = await client.complete(
        [token for token in prompt if token != poisoned.token],
        stream=True,
        temperature=0.8,
        seed=number,
        max_tokens=LONG,
        ignore_eos=True,
        return_tokens=True,
        logprobs=2,
        logit_bias={poisoned.token: -100.0},
    )
    async with stream:
        async for _ in stream:
            if started is not None:
                started.set()
    return stream.completion().choices[0]


@asynccontextmanager
async def unmoved(stack: RunningStack, client: AsyncClient, poisoned: Poisoned) -> AsyncIterator[None]:
    """Neighbours that stream all the while: each is as it was alone, and so is one that comes after."""
    alone = [await neighbour(client, poisoned, number) for number in range(NEIGHBOURS)]
    assert all(len(choice.tokens) == LONG for choice in alone)
    started = [asyncio.Event() for _ in alone]
    running = [
        asyncio.create_task(neighbour(client, poisoned, number, started[number])) for number in range(NEIGHBOURS)
    ]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 60)
    yield
    assert await asyncio.gather(*running) == alone
    assert await neighbour(client, poisoned, 3) == alone[3]
    until_at_rest(stack.workers[0])


async def raised(work: Awaitable[Any]) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        await work
    return caught.value


def completion(prompt: Sequence[int] | str, **more: Any) -> dict[str, Any]:
    return {"model": "poisoned", "prompt": prompt, "max_tokens": 40, "temperature": 0, **more}


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "poisoned", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


async def streamed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, list[Any]]:
    """Status and events; a body that is no stream counts as one event."""
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        if not response.headers["content-type"].startswith("text/event-stream"):
            return response.status_code, [json.loads(await response.aread())]
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return response.status_code, [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def session(stack: RunningStack, *requests: pb.GenerateRequest) -> dict[str, list[pb.SessionEvent]]:
    """All events of each, over one Session."""
    async with rpc.channel(stack.grpc) as channel:
        call = pb_grpc.InferenceStub(channel).Session(timeout=60)
        for request in requests:
            await call.write(pb.SessionRequest(start=request))
        await call.done_writing()
        events: dict[str, list[pb.SessionEvent]] = {}
        async for response in call:
            for event in response.events:
                events.setdefault(event.request_id, []).append(event)
    return events


async def test_c29_logits_that_are_not_finite_from_the_start_are_one_error_with_its_status(
    stack: RunningStack, client: AsyncClient, http: httpx.AsyncClient, poisoned: Poisoned
) -> None:
    """Nothing of it is inside a 200."""
    prompt = [5, 6, poisoned.token, 7]
    async with unmoved(stack, client, poisoned):
        for more in ({}, {"n": 3}, {"logprobs": 2}):
            answer = await http.post("/completions", json=completion(prompt, **more))
            assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
            assert NOT_FINITE in answer.json()["error"]["message"]
        status, (error,) = await streamed(http, "/completions", completion(prompt))
        assert (status, error["error"]["code"]) == (500, "internal_error")
        error = await raised(client.complete(prompt, max_tokens=9))
        assert (type(error), NOT_FINITE in error.message) == (Internal, True)
        for part in ([*range(40, 90), poisoned.token], [poisoned.token] * 40):
            assert type(await raised(client.complete(part, max_tokens=9))) is Internal


async def test_c29_logits_that_break_amid_a_stream_end_it_in_one_error_event(
    stack: RunningStack, client: AsyncClient, http: httpx.AsyncClient, poisoned: Poisoned
) -> None:
    """What came before is right, then one event tells the error, and nothing follows."""
    async with unmoved(stack, client, poisoned):
        for _ in range(2):
            status, events = await streamed(http, "/completions", completion(poisoned.prompt))
            assert status == 200
            assert [bool(event.get("error")) for event in events] == [False] * (len(events) - 1) + [True]
            assert len(events) > 1
            assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
            assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
            assert NOT_FINITE in events[-1]["error"]["message"]
            assert (await http.post("/completions", json=completion(poisoned.prompt))).status_code == 500
        stream = await client.complete(poisoned.prompt, stream=True, temperature=0.0, max_tokens=40, return_tokens=True)
        error = await raised(_drained(stream))
        assert (type(error), NOT_FINITE in error.message) == (Internal, True)
        assert stream.completion().choices[0].tokens == (*poisoned.before, poisoned.token)


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_session_tells_the_error_to_the_request_that_has_it(stack: RunningStack, poisoned: Poisoned) -> None:
    def request(name: str, prompt: Sequence[int]) -> pb.GenerateRequest:
        sampling = pb.Sampling(temperature=0, max_tokens=6, ignore_eos=True)
        return pb.GenerateRequest(
            request_id=name, prompt_tokens=pb.TokenIds(ids=prompt), sampling=sampling, return_tokens=True
        )

    healthy = [request(f"good{i}", [30 + i, 31, 32]) for i in range(4)]
    alone = [(await session(stack, one))[one.request_id] for one in healthy]
    bad = request("bad", [poisoned.token])
    events = await session(stack, *healthy[:2], bad, *healthy[2:])
    assert [event.HasField("error") for event in events["bad"]] == [True]
    assert NOT_FINITE in events["bad"][0].error.message
    for one, expected in zip(healthy, alone, strict=True):
        assert _tokens(events[one.request_id]) == _tokens(expected)
        assert events[one.request_id][-1].done


def _tokens(events: Sequence[pb.SessionEvent]) -> list[int]:
    return [token for event in events for chunk in event.response.chunks for token in chunk.tokens]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (RAISES, 400, "this is not a conversation"),
        (LOOPS, 400, "takes longer"),
        (f"what about {NO_TOKEN}?", 500, "tokenizer failed"),
    ],
    ids=["raises", "loops", "no-token"],
)
async def test_a_template_or_a_tokenizer_that_fails_on_one_input_fails_alone(
    stack: RunningStack,
    client: AsyncClient,
    http: httpx.AsyncClient,
    poisoned: Poisoned,
    content: str,
    status: int,
    words: str,
) -> None:
    kind: Callable[..., Any] = InvalidRequest if status == 400 else Internal
    async with unmoved(stack, client, poisoned):
        answer = await http.post("/chat/completions", json=chat(content))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, "messages" if status == 400 else None)
        assert words in error["message"]
        assert (await streamed(http, "/chat/completions", chat(content)))[0] == status
        told = await raised(client.chat([{"role": "user", "content": content}], max_tokens=4))
        assert (type(told), words in told.message) == (kind, True)
        fine = await http.post("/chat/completions", json=chat("what now?"))
        assert fine.status_code == 200
