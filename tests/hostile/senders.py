"""Sends what the tables hold to a running server, and gives what came back."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import httpx
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos import inference_pb2 as pb
from shared import rpc
from tests.hostile.messages import GENERATE, wrong_frames
from tests.hostile.wires import Raw

BOUND = 60.0  # seconds that any one answer may take on a busy machine
FIELDS = {"message", "type", "param", "code"}


@dataclass(frozen=True, kw_only=True)
class Told:
    """An answer: its status and its error's fields."""

    status: int
    error: dict[str, Any]


async def send_raw(address: str, raw: Raw) -> Told:
    """The first answer to these bytes. Raises where none comes, or what comes is not an error in OpenAI's shape."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(BOUND):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(raw.data)
            if raw.half_close:
                writer.write_eof()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
            body = await reader.readexactly(int(length.partition(":")[2]))
        finally:
            writer.close()
    return Told(status=int(head.split()[1]), error=json.loads(body)["error"])


async def send_body(http: httpx.AsyncClient, path: str, body: Any) -> Told:
    """The answer to a JSON body."""
    answer = await http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    return Told(status=answer.status_code, error=answer.json().get("error", {}))


async def send_call(channel: grpc.aio.Channel, method: str, message: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call, and the field that its google.rpc.BadRequest names; OK names none."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    path = f"/octavo.v1.Inference/{method}"
    try:
        if method == GENERATE:
            async for _ in channel.unary_stream(path)(data, timeout=BOUND):
                pass
        else:
            await channel.unary_unary(path)(data, timeout=BOUND)
    except grpc.aio.AioRpcError as error:
        return error.code(), _field(error)
    return grpc.StatusCode.OK, ""


def _field(error: grpc.aio.AioRpcError) -> str:
    """The one field at fault, on which both of the status's details agree."""
    fields = bad_fields(error)
    assert fields in ([], [rpc.from_rpc_error(error).param])
    return "".join(fields)


def bad_fields(error: grpc.aio.AioRpcError) -> list[str]:
    """The fields that the status's google.rpc.BadRequest names."""
    status, bad = rpc_status.from_call(error), error_details_pb2.BadRequest()
    if status is not None:
        for detail in status.details:
            detail.Unpack(bad)
    return [violation.field for violation in bad.field_violations]


async def send_session(channel: grpc.aio.Channel) -> list[tuple[str, str, str, int]]:
    """All wrong frames over one stream: what was expected and what was told as (id, field, told field, code), each exactly once."""
    frames = list(wrong_frames())
    call = channel.stream_stream(
        "/octavo.v1.Inference/Session",
        request_serializer=pb.SessionRequest.SerializeToString,
        response_deserializer=pb.SessionResponse.FromString,
    )(timeout=BOUND)
    ids = [frame.start.request_id for frame, _ in frames]
    for frame, _ in frames:
        await call.write(frame)
    await call.done_writing()
    events = [event async for response in call for event in response.events]
    assert sorted(event.request_id for event in events) == sorted(ids)
    expected = {frame.start.request_id: name for frame, name in frames if frame.start.request_id}
    named = [(e.request_id, expected[e.request_id], e.error.param, e.error.grpc_code) for e in events if e.request_id]
    nameless = sorted(e.error.param for e in events if not e.request_id)
    assert nameless == sorted(name for frame, name in frames if not frame.start.request_id)
    return named
