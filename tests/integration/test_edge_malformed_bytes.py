"""Bytes that are no message, on every method of the public API."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from router.edge.gate import Gate
from router.edge.grpc import server as grpc_server
from shared import rpc
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.service import FakeService
from tests.hostile import http2
from tests.hostile.senders import send_call

BYTES = (b"\xff" * 50, b"\x0a\xff")
NOT_UTF8 = b"\x1a\x02\xff\xfe"  # as a prompt
UNARY = ("Tokenize", "Detokenize")


@pytest.fixture
async def edge() -> AsyncIterator[GrpcEdge]:
    async with grpc_edge(FakeService()) as running:
        yield running


async def _drained(call: object) -> None:
    async for _ in call:  # type: ignore[attr-defined]
        pass


async def _invalid(call: object) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (_drained(call) if hasattr(call, "__aiter__") else call)  # type: ignore[misc]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rpc.from_rpc_error(caught.value).param == "request"


@pytest.mark.parametrize("data", BYTES)
async def test_malformed_bytes_are_invalid_on_every_method_and_the_next_request_is_served(
    edge: GrpcEdge, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with rpc.channel(edge.address) as channel:
        for method in UNARY:
            await _invalid(channel.unary_unary(f"/octavo.v1.Inference/{method}")(data, timeout=10))
        await _invalid(channel.unary_stream("/octavo.v1.Inference/Generate")(data, timeout=10))
        await _invalid(channel.stream_stream("/octavo.v1.Inference/Session")(iter([data]), timeout=10))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert [response async for response in edge.stub.Generate(pb.GenerateRequest(model="tiny", prompt="Hello"))]


@pytest.mark.parametrize("path", [b"/\xff\xfe/\x00", b"\xff", b"", b"/", b"/no.such/Method", "/é/ü".encode("latin-1")])
async def test_a_call_whose_path_is_no_method_is_answered_and_the_server_serves_on(edge: GrpcEdge, path: bytes) -> None:
    answer = await http2.first_frame_of((http2.HEADERS, http2.RESET, http2.GOAWAY), edge.address, http2.call(path))
    assert answer == http2.HEADERS
    assert [response async for response in edge.stub.Generate(pb.GenerateRequest(model="tiny", prompt="Hello"))]


async def test_a_prompt_that_is_not_utf8_is_invalid(edge: GrpcEdge) -> None:
    async with rpc.channel(edge.address) as channel:
        await _invalid(channel.unary_stream("/octavo.v1.Inference/Generate")(NOT_UTF8, timeout=10))


RIGHT = {
    "Generate": pb.GenerateRequest(
        request_id="r",
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Hello")]),
        sampling=pb.Sampling(temperature=0.5, stop=["x"], stop_token_ids=[1], logit_bias={5: 1}, max_tokens=2),
        n=2,
    ).SerializeToString(),
    "Tokenize": pb.TokenizeRequest(text="Hello").SerializeToString(),
    "Detokenize": pb.DetokenizeRequest(tokens=[72, 105]).SerializeToString(),
}
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
}


@given(
    method=st.sampled_from(list(RIGHT)),
    edits=st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=4), st.integers(0, 3)), max_size=4),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_c28_no_change_of_bytes_makes_a_server_error(
    edge: GrpcEdge, method: str, edits: list[tuple[int, bytes, int]]
) -> None:
    data = RIGHT[method]
    for place, put, taken in edits:
        at = place % (len(data) + 1)
        data = data[:at] + put + data[at + taken :]
    async with rpc.channel(edge.address) as channel:
        code, _ = await send_call(channel, method, data)
    assert code in EXPECTED


@pytest.mark.parametrize(
    "data", [b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_half_a_handshake_is_ended_in_time(data: bytes) -> None:
    server = await grpc_server.start(Gate(FakeService()), "127.0.0.1", 0, head_seconds=0.2)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
        writer.write(data)
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()
    finally:
        await server.stop(0)
