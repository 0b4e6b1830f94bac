"""The Python client against the real gRPC edge."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import octavo
from octavo.client.results import Choice, Logprobs, Model, Usage
from shared.errors import Cancelled, InvalidRequest, ModelNotFound, NotFound, Overloaded, Unavailable
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import SEED, WORDS, FakeService

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


@pytest.fixture
async def client(edge: GrpcEdge) -> AsyncIterator[octavo.AsyncClient]:
    async with octavo.AsyncClient(edge.address, timeout=20) as made:
        yield made


async def test_chat_gives_a_whole_completion(client: octavo.AsyncClient) -> None:
    answer = await client.chat(HELLO, return_tokens=True)
    assert answer.model == "tiny"
    assert answer.seed == SEED
    assert answer.text == TEXT
    assert answer.usage == Usage(prompt_tokens=5, completion_tokens=len(WORDS), cached_tokens=2)
    assert answer.choices == (
        Choice(
            index=0,
            text=TEXT,
            tokens=tuple(range(len(WORDS))),
            logprobs=(),
            finish_reason="stop",
            stop_string=None,
            stop_token=2,
        ),
    )


async def test_streamed_deltas_join_to_the_whole_answer(client: octavo.AsyncClient) -> None:
    async with await client.chat(HELLO, stream=True, n=3) as stream:
        deltas = [delta async for delta in stream]
    for index in range(3):
        mine = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in mine) == TEXT
        assert [delta.finish_reason for delta in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert stream.seed == SEED
    assert stream.usage == stream.completion().usage
    assert [choice.text for choice in stream.completion().choices] == [TEXT] * 3


async def test_every_option_reaches_the_service(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    await client.complete(
        [10, 11],
        model="tiny",
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.25,
        seed=0,
        max_tokens=4,
        min_tokens=1,
        stop="never",
        stop_token_ids=[7, 8],
        ignore_eos=True,
        logprobs=0,
        n=2,
        request_id="mine",
    )
    request = edge.service.requests[0]
    sampling = request.sampling
    assert (request.model, request.n, request.request_id) == ("tiny", 2, "mine")
    assert list(request.prompt.tokens) == [10, 11]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 3, 0.25)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (0, 4, 1)
    assert (sampling.stop, sampling.stop_token_ids) == (("never",), (7, 8))
    assert (sampling.ignore_eos, sampling.logprobs) == (True, 0)


async def test_what_is_not_given_is_left_to_the_server(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    await client.complete("Once")
    sampling = edge.service.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.logprobs) == (1.0, 1.0, None, None)
    assert sampling.stop == ()


async def test_logprobs_and_stop_strings_are_typed(client: octavo.AsyncClient) -> None:
    answer = await client.complete("Once", logprobs=2, stop=[" upon", " time"])
    choice = answer.choices[0]
    assert choice.text == "Once"
    assert (choice.finish_reason, choice.stop_string, choice.stop_token) == ("stop", " upon", None)
    assert choice.logprobs[0].sampled.text == b"Once"
    assert [row.token for row in choice.logprobs[0].top] == [0, 1]


async def test_leaving_a_stream_aborts_the_work(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    edge.service.hold_at = 2
    async with await client.chat(HELLO, stream=True) as stream:
        assert (await anext(stream)).text == WORDS[0]
    await asyncio.wait_for(edge.service.generations[0].closed.wait(), 10)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_dropping_a_stream_aborts_the_work(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    edge.service.hold_at = 2
    stream = await client.chat(HELLO, stream=True)
    await anext(stream)
    del stream
    await asyncio.wait_for(edge.service.generations[0].closed.wait(), 10)


async def test_cancelling_the_task_that_waits_aborts_the_work(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    edge.service.hold_at = 2
    task = asyncio.create_task(client.chat(HELLO))
    await until(lambda: edge.service.generations, "the generation")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(edge.service.generations[0].closed.wait(), 10)


async def test_errors_come_back_as_they_were_raised(edge: GrpcEdge, client: octavo.AsyncClient) -> None:
    with pytest.raises(NotFound) as unknown:
        await client.chat(HELLO, model="none")
    assert unknown.value.code == ModelNotFound.code
    edge.service.refuse = Overloaded("try later", retry_after=2.5)
    with pytest.raises(Overloaded, match="try later") as overloaded:
        await client.chat(HELLO, stream=False)
    assert overloaded.value.retry_after == 2.5
    with pytest.raises(InvalidRequest) as invalid:
        await client.chat(HELLO, temperature=9.0)
    assert invalid.value.param == "temperature"


async def test_an_error_amid_a_stream_is_raised_after_what_came_before(
    edge: GrpcEdge, client: octavo.AsyncClient
) -> None:
    edge.service.fail_at, edge.service.failure = 2, Unavailable("the worker is gone")
    stream = await client.chat(HELLO, stream=True)
    first = [(await anext(stream)).text for _ in range(2)]
    with pytest.raises(Unavailable, match="the worker is gone"):
        await anext(stream)
    assert "".join(first) == "".join(WORDS[:2])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"n": "two"}, "n"),
        ({"beams": 4}, "beams"),
    ],
)
async def test_what_no_message_can_hold_is_refused_by_name(
    client: octavo.AsyncClient, options: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as invalid:
        await client.complete("Once", **options)
    assert invalid.value.param == param


async def test_tokens_and_models(client: octavo.AsyncClient) -> None:
    assert await client.tokenize("ab") == (1, 97, 98)
    assert await client.tokenize("ab", add_special_tokens=False) == (97, 98)
    assert await client.tokenize(HELLO) == tuple(map(ord, "Hello"))
    assert await client.detokenize([1, 97, 98], skip_special_tokens=True) == "ab"
    assert await client.models() == (Model(id="tiny", created=1_700_000_000, max_model_len=2048, workers=1),)


async def test_the_blocking_client_does_the_same(edge: GrpcEdge) -> None:
    def work() -> None:
        with octavo.Client(edge.address, timeout=20) as client:
            assert client.chat(HELLO, n=2).choices[1].text == TEXT
            assert client.complete([1, 2], max_tokens=3).text == "".join(WORDS[:3])
            assert client.tokenize("ab") == (1, 97, 98)
            assert client.detokenize([97]) == "a"
            assert client.models()[0].id == "tiny"
            with client.chat(HELLO, stream=True) as stream:
                assert "".join(delta.text for delta in stream) == TEXT
            assert stream.usage is not None
            with pytest.raises(InvalidRequest) as invalid:
                client.chat(HELLO, top_p=7.0)
            assert invalid.value.param == "top_p"

    await asyncio.to_thread(work)


async def test_a_blocking_stream_that_is_left_aborts_the_work(edge: GrpcEdge) -> None:
    edge.service.hold_at = 2

    def leave(how: str) -> None:
        with octavo.Client(edge.address, timeout=20) as client:
            stream = client.chat(HELLO, stream=True)
            next(stream)
            if how == "close":
                stream.close()
                assert list(stream) == []
            else:
                del stream
            generation = edge.service.generations[-1]
            asyncio.run_coroutine_threadsafe(generation.closed.wait(), loop).result(10)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(leave, "close")
    await asyncio.to_thread(leave, "drop")


async def test_a_router_that_is_not_there_is_unavailable() -> None:
    async with octavo.AsyncClient("127.0.0.1:1", timeout=5) as client:
        with pytest.raises(Unavailable, match=r"^the router cannot be reached, or the connection to it was lost$"):
            await client.models()


async def test_cancelled_is_what_another_task_sees_when_a_stream_is_closed_under_it(
    edge: GrpcEdge, client: octavo.AsyncClient
) -> None:
    edge.service.hold_at = 0
    stream = await client.chat(HELLO, stream=True)
    waiting = asyncio.create_task(anext(stream))
    await until(lambda: edge.service.generations, "the generation")
    await stream.aclose()
    with pytest.raises((Cancelled, asyncio.CancelledError)):
        await asyncio.wait_for(waiting, 10)


EVERY = {
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {7: -100.0, 8: 2.5},
    "allowed_token_ids": [7, 8, 9],
    "bad_words": ["fox", [3, 4], " dog", [5]],
    "prompt_logprobs": 2,
    "echo": True,
    "truncate_prompt_tokens": 3,
}


async def test_every_sampling_option_reaches_the_router_from_both_clients(
    edge: GrpcEdge, client: octavo.AsyncClient
) -> None:
    await client.complete("Hello", **EVERY)  # type: ignore[arg-type]
    await asyncio.to_thread(_blocking, edge.address)
    first, second = edge.service.requests
    assert first.sampling == second.sampling
    said = first.sampling
    assert (said.presence_penalty, said.frequency_penalty, said.repetition_penalty) == (0.5, -0.5, 1.5)
    assert dict(said.logit_bias) == EVERY["logit_bias"]
    assert said.allowed_token_ids == (7, 8, 9)
    assert (said.bad_words, said.bad_word_strings) == (((3, 4), (5,)), ("fox", " dog"))
    assert (said.prompt_logprobs, first.echo, first.truncate_prompt_tokens) == (2, True, 3)


def _blocking(address: str) -> None:
    with octavo.Client(address, timeout=20) as client, client.complete("Hello", stream=True, **EVERY) as stream:  # type: ignore[call-overload]
        for _ in stream:
            assert len(stream.prompt_logprobs) == 3
        _check_rows(stream.completion().prompt_logprobs)


def _check_rows(rows: tuple[Logprobs | None, ...]) -> None:
    """Of the last three letters of Hello, the first without a row."""
    assert rows[0] is None
    told = [row for row in rows[1:] if row]
    assert [row.sampled.text for row in told] == [b"l", b"o"]
    assert [len(row.top) for row in told] == [2, 2]


async def test_rows_of_a_prompt_come_with_a_whole_answer_and_with_a_stream(client: octavo.AsyncClient) -> None:
    answer = await client.complete("Hello", prompt_logprobs=2, truncate_prompt_tokens=3)
    _check_rows(answer.prompt_logprobs)
    async with await client.complete("Hello", stream=True, prompt_logprobs=2, truncate_prompt_tokens=3) as stream:
        async for _ in stream:
            _check_rows(stream.prompt_logprobs)
    assert (await client.complete("Hello")).prompt_logprobs == ()


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"7": 1.0}),
        ("logit_bias", [7]),
        ("allowed_token_ids", [2**32]),
        ("allowed_token_ids", 7),
        ("bad_words", [7]),
        ("bad_words", [["fox"]]),
        ("bad_words", ["\ud800"]),
        ("presence_penalty", "much"),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 1.5),
    ],
)
async def test_an_option_that_no_message_holds_is_refused_by_name(
    client: octavo.AsyncClient, param: str, value: object
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.complete("Hello", **{param: value})  # type: ignore[arg-type]
    assert refused.value.param == param
