"""Beam search over a Session of an event loop."""

import grpc.aio

from octavo.client.beam.rounds import Rounds
from octavo.client.credentials import Metadata
from octavo.client.failures import told
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared.errors import Unavailable

_Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


async def run(stub: "pb_grpc.InferenceAsyncStub", rounds: Rounds, timeout: float | None, metadata: Metadata) -> None:
    """Rounds until the search is over. Raises OctavoErrors; whatever ends it, nothing of it runs on."""
    call: _Call = stub.Session(timeout=timeout, metadata=metadata)
    try:
        with told():
            while requests := rounds.requests():
                for request in requests:
                    await call.write(request)
                await _await(call, rounds)
                rounds.end()
    finally:
        call.cancel()


async def _await(call: _Call, rounds: Rounds) -> None:
    while isinstance(response := await call.read(), pb.SessionResponse):
        if rounds.take(response):
            return
    raise Unavailable("the router ended the session")
