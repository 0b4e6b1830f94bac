"""Beam search over a blocking Session."""

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Protocol

from octavo.client.beam.rounds import Rounds
from octavo.client.credentials import Metadata
from octavo.client.failures import told
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from shared.errors import Unavailable


class _Call(Protocol):
    """A session, as gRPC gives it."""

    def __iter__(self) -> Iterator[pb.SessionResponse]:
        """Responses as they come; raises RpcErrors."""

    def cancel(self) -> object:
        """Aborts everything of it."""


def run(stub: pb_grpc.InferenceStub, rounds: Rounds, timeout: float | None, metadata: Metadata) -> None:
    """Rounds until the search is over. Raises OctavoErrors; whatever ends it, nothing of it runs on."""
    outgoing: SimpleQueue[pb.SessionRequest | None] = SimpleQueue()
    call: _Call = stub.Session(iter(outgoing.get, None), timeout=timeout, metadata=metadata)
    try:
        with told():
            while requests := rounds.requests():
                for request in requests:
                    outgoing.put(request)
                _await(call, rounds)
                rounds.end()
    finally:
        outgoing.put(None)
        call.cancel()


def _await(call: _Call, rounds: Rounds) -> None:
    for response in call:
        if rounds.take(response):
            return
    raise Unavailable("the router ended the session")
