"""Bytes that are no message, on every method of the public API."""

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from protos import inference_pb2 as pb
from shared import rpc
from tests.fakes.edges import GrpcEdge, grpc_edge
from tests.fakes.service import FakeService

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


async def test_a_prompt_that_is_not_utf8_is_invalid(edge: GrpcEdge) -> None:
    async with rpc.channel(edge.address) as channel:
        await _invalid(channel.unary_stream("/octavo.v1.Inference/Generate")(NOT_UTF8, timeout=10))
