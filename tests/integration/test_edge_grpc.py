"""The gRPC edge through a real channel: every call, its errors, its ends."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from protos import inference_pb2 as pb
from router.request import ChatPrompt, Message, TextPrompt, TokenPrompt
from shared import rpc
from shared.errors import InvalidRequest, Overloaded, Unavailable
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.scripted_worker import until
from tests.fakes.service import SEED, WORDS, FakeService

TEXT = "".join(WORDS)
BOUND = 10  # seconds


@pytest.fixture
async def edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


def hello(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"model": "tiny", "prompt": "Hello", **fields})


async def status_of(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (drained(call) if hasattr(call, "__aiter__") else call)
    return caught.value


async def drained(call) -> None:
    async for _ in call:
        pass


async def settled(edge: GrpcEdge) -> None:
    async with asyncio.timeout(BOUND):
        await edge.gate.idle()


async def generation_of(edge: GrpcEdge, number: int = 0):
    await until(lambda: len(edge.service.generations) > number)
    return edge.service.generations[number]


async def test_generate_streams_the_text_with_seed_first_and_usage_last(edge: GrpcEdge) -> None:
    responses = [response async for response in edge.stub.Generate(hello())]
    chunks = [chunk for response in responses for chunk in response.chunks]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert [r.HasField("seed") for r in responses] == [True] + [False] * (len(responses) - 1)
    assert [r.HasField("usage") for r in responses] == [False] * (len(responses) - 1) + [True]
    assert responses[0].seed == SEED
    assert (responses[0].id, responses[0].model) == (edge.service.generations[0].id, "tiny")
    usage = responses[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, len(WORDS), 2)
    assert [c.finish_reason for c in chunks] == [0] * (len(chunks) - 1) + [pb.FINISH_REASON_STOP]
    assert chunks[-1].stop_token == 2
    assert not any(chunk.tokens for chunk in chunks)
    await settled(edge)
    assert edge.service.generations[0].closed.is_set()


async def test_an_answer_that_went_on_with_other_numbers_says_so() -> None:
    async with grpc_edge(FakeService(hold_at=2)) as edge:
        call = edge.stub.Generate(hello())
        generation = await generation_of(edge)
        responses = aiter(call)
        first = await anext(responses)
        generation.resumed = "inexact"
        generation.release.set()
        rest = [response async for response in responses]
    assert first.resumed == ""
    assert rest[-1].resumed == "inexact"


async def test_generate_request_reaches_the_service_whole(edge: GrpcEdge) -> None:
    sampling = pb.Sampling(
        temperature=0, top_p=0.5, top_k=4, min_p=0.25, seed=0, max_tokens=5, min_tokens=2,
        stop=["x", "y"], stop_token_ids=[3], ignore_eos=True, logprobs=0,
    )  # fmt: skip
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi", name="ann")], add_generation_prompt=False)
    request = pb.GenerateRequest(request_id="mine", chat=chat, sampling=sampling, n=2)
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    async for _ in edge.stub.Generate(request, metadata=[("traceparent", trace)]):
        pass
    got = edge.service.requests[0]
    messages = (Message(role="user", content="Hi", name="ann"),)
    assert got.prompt == ChatPrompt(messages=messages, add_generation_prompt=False)
    s = got.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.max_tokens) == (0.0, 0.5, 4, 0.25, 0, 5)
    assert (s.min_tokens, s.stop, s.stop_token_ids, s.ignore_eos, s.logprobs) == (2, ("x", "y"), (3,), True, 0)
    assert (got.request_id, got.n, got.timeout) == ("mine", 2, None)
    assert got.traceparent.split("-")[1] == "a" * 32


async def test_fields_not_set_take_the_requests_own_defaults(edge: GrpcEdge) -> None:
    async for _ in edge.stub.Generate(pb.GenerateRequest(prompt_tokens=pb.TokenIds(ids=[1, 2]))):
        pass
    got = edge.service.requests[0]
    assert got.prompt == TokenPrompt(tokens=[1, 2])
    assert (got.sampling.temperature, got.sampling.seed, got.sampling.max_tokens) == (1.0, None, None)
    assert (got.sampling.logprobs, got.n) == (None, 1)


async def test_tokens_and_logprobs_come_where_asked_for(edge: GrpcEdge) -> None:
    request = hello(return_tokens=True, sampling=pb.Sampling(logprobs=2, max_tokens=6))
    chunks = [c async for r in edge.stub.Generate(request) for c in r.chunks]
    assert [token for chunk in chunks for token in chunk.tokens] == list(range(6))
    rows = [row for chunk in chunks for row in chunk.logprobs]
    assert [row.sampled.text.decode() for row in rows] == list(WORDS[:6])
    assert [len(row.top) for row in rows] == [2] * 6
    assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert chunks[-1].WhichOneof("stopped_by") is None


async def test_whole_gives_one_chunk_a_choice(edge: GrpcEdge) -> None:
    responses = [r async for r in edge.stub.Generate(hello(whole=True, return_tokens=True, n=3))]
    chunks = [chunk for response in responses for chunk in response.chunks]
    assert [(c.index, c.text, list(c.tokens)) for c in chunks] == [(i, TEXT, list(range(len(WORDS)))) for i in range(3)]
    assert responses[0].HasField("seed")
    assert responses[-1].usage.completion_tokens == 3 * len(WORDS)


async def test_stop_string_is_named(edge: GrpcEdge) -> None:
    request = hello(sampling=pb.Sampling(stop=[" time"]))
    chunks = [c async for r in edge.stub.Generate(request) for c in r.chunks]
    assert "".join(chunk.text for chunk in chunks) == "Once upon a"
    assert chunks[-1].stop_string == " time"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (pb.GenerateRequest(model="tiny"), "prompt"),
        (pb.GenerateRequest(chat=pb.Chat()), "chat.messages"),
        (hello(n=0), "n"),
        (hello(n=65), "n"),
        (hello(sampling=pb.Sampling(temperature=2.5)), "temperature"),
        (hello(sampling=pb.Sampling(temperature=float("nan"))), "temperature"),
        (hello(sampling=pb.Sampling(top_p=0)), "top_p"),
        (hello(sampling=pb.Sampling(min_p=float("inf"))), "min_p"),
        (hello(sampling=pb.Sampling(max_tokens=0)), "max_tokens"),
        (hello(sampling=pb.Sampling(min_tokens=3, max_tokens=2)), "min_tokens"),
        (hello(sampling=pb.Sampling(logprobs=21)), "logprobs"),
        (hello(sampling=pb.Sampling(stop=[""])), "stop"),
        (hello(sampling=pb.Sampling(stop=["a"] * 17)), "stop"),
        (hello(sampling=pb.Sampling(stop_token_ids=range(65))), "stop_token_ids"),
        (hello(request_id="x" * 257), "request_id"),
    ],
)
async def test_wrong_fields_are_named_in_the_rich_status(
    request_: pb.GenerateRequest, param: str, edge: GrpcEdge
) -> None:
    error = await status_of(edge.stub.Generate(request_))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    bad = error_details_pb2.BadRequest()
    details = rpc_status.from_call(error).details
    assert any(detail.Unpack(bad) for detail in details)
    assert [violation.field for violation in bad.field_violations] == [param]
    assert rpc.from_rpc_error(error).param == param
    assert edge.service.requests == []


async def test_overload_says_when_to_come_again(edge: GrpcEdge) -> None:
    edge.service.refuse = Overloaded("full", retry_after=1.5)
    error = rpc.from_rpc_error(await status_of(edge.stub.Generate(hello())))
    assert isinstance(error, Overloaded)
    assert error.retry_after == 1.5


async def test_unknown_model_is_not_found(edge: GrpcEdge) -> None:
    error = await status_of(edge.stub.Generate(hello(model="absent")))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert rpc.from_rpc_error(error).code == "model_not_found"


async def test_an_error_in_mid_stream_ends_the_call_with_its_status(edge: GrpcEdge) -> None:
    edge.service.fail_at, edge.service.failure = 2, Unavailable("the worker is gone")
    error = await status_of(edge.stub.Generate(hello()))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the worker is gone")
    await settled(edge)


async def test_our_own_fault_is_internal_and_tells_nothing(edge: GrpcEdge) -> None:
    edge.service.fail_at, edge.service.failure = 0, RuntimeError("secret")
    error = await status_of(edge.stub.Generate(hello()))
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")


async def test_cancelling_while_queued_cancels_the_admission(edge: GrpcEdge) -> None:
    edge.service.admit.clear()
    call = edge.stub.Generate(hello())
    reading = asyncio.create_task(call.read())
    async with asyncio.timeout(BOUND):
        await edge.service.entered.wait()
        call.cancel()
        await edge.service.abandoned.wait()
    await settled(edge)
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("hold_at", [0, 3])
async def test_cancelling_closes_the_generation_at_once(edge: GrpcEdge, hold_at: int) -> None:
    edge.service.hold_at = hold_at
    call = edge.stub.Generate(hello())
    for _ in range(hold_at):
        await call.read()
    generation = await generation_of(edge)
    call.cancel()
    async with asyncio.timeout(BOUND):
        await generation.closed.wait()
    await settled(edge)
    assert not generation.finished


async def test_a_deadline_reaches_the_request_and_ends_it(edge: GrpcEdge) -> None:
    edge.service.hold_at = 1
    error = await status_of(edge.stub.Generate(hello(), timeout=1.0))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(BOUND):
        await edge.service.generations[0].closed.wait()
    timeout = edge.service.requests[0].timeout
    assert timeout is not None
    assert 0 < timeout <= 2


async def test_tokenize_and_detokenize(edge: GrpcEdge) -> None:
    text = await edge.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="ab"))
    assert (list(text.tokens), text.max_model_len) == ([1, 97, 98], 2048)
    bare = await edge.stub.Tokenize(pb.TokenizeRequest(text="ab", add_special_tokens=False))
    assert list(bare.tokens) == [97, 98]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="c")])
    assert list((await edge.stub.Tokenize(pb.TokenizeRequest(chat=chat))).tokens) == [99]
    detokenize = pb.DetokenizeRequest(model="tiny", tokens=[1, 97], skip_special_tokens=True)
    assert (await edge.stub.Detokenize(detokenize)).text == "a"
    error = await status_of(edge.stub.Tokenize(pb.TokenizeRequest(model="tiny")))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    error = await status_of(edge.stub.Detokenize(pb.DetokenizeRequest(model="absent")))
    assert error.code() == grpc.StatusCode.NOT_FOUND


async def test_models_are_listed(edge: GrpcEdge) -> None:
    cards = (await edge.stub.ListModels(pb.ListModelsRequest())).models
    assert [(card.id, card.max_model_len, card.workers) for card in cards] == [("tiny", 2048, 1)]


async def test_health_is_serving_exactly_while_ready(edge: GrpcEdge) -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with rpc.channel(edge.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "octavo.v1.Inference"):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == serving
        error = await status_of(health.Check(health_pb2.HealthCheckRequest(service="absent")))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == serving
        edge.service.is_ready = False
        assert (await watch.read()).status == not_serving
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == not_serving
        edge.service.is_ready = True
        assert (await watch.read()).status == serving
        edge.gate.close()
        assert (await watch.read()).status == not_serving
        watch.cancel()


async def test_reflection_names_the_service(edge: GrpcEdge) -> None:
    async with rpc.channel(edge.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        call.cancel()
    assert {"octavo.v1.Inference", "grpc.health.v1.Health"} <= names


async def test_prompts_reach_the_service_as_text(edge: GrpcEdge) -> None:
    async for _ in edge.stub.Generate(hello(prompt="Grüße\n")):
        pass
    assert edge.service.requests[0].prompt == TextPrompt(text="Grüße\n")


async def test_a_shut_gate_refuses_calls(edge: GrpcEdge) -> None:
    edge.gate.close()
    error = rpc.from_rpc_error(await status_of(edge.stub.Generate(hello())))
    assert isinstance(error, Unavailable)
    assert not isinstance(error, InvalidRequest)
