"""Workers, listed and drained by operators: through a router's operators' listener, or one worker by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

import grpc

from octavo.client.credentials import metadata_of
from octavo.client.failures import NotServed, Unreached, told
from protos import admin_pb2 as pb
from protos import admin_pb2_grpc as pb_grpc
from protos import worker_pb2, worker_pb2_grpc
from shared import rpc

SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A worker as a router sees it. `state` is ready, down, suspect, hung, draining or broken."""

    target: str
    state: str
    worker_id: str
    model: str
    version: str
    running: int
    waiting: int
    free_blocks: int
    total_blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """`unfinished` choices had not ended by the deadline."""

    worker_id: str
    unfinished: int


def _worker(status: pb.WorkerStatus) -> Worker:
    return Worker(
        target=status.target,
        state=status.state,
        worker_id=status.worker_id,
        model=status.model,
        version=status.version,
        running=status.running,
        waiting=status.waiting,
        free_blocks=status.free_blocks,
        total_blocks=status.total_blocks,
    )


class OperatorClient:
    """Blocking, at a router's --admin-grpc-listen. `api_key` None: $OCTAVO_API_KEY, or none. All methods raise OctavoErrors."""

    def __init__(self, target: str, *, api_key: str | None = None):
        self._channel = rpc.blocking_channel(target)
        self._stub: pb_grpc.AdminStub = pb_grpc.AdminStub(self._channel)
        self._metadata = metadata_of(api_key)

    def workers(self) -> Sequence[Worker]:
        """Every target that the router knows, and the worker there."""
        with told():
            answer = self._stub.ListWorkers(pb.ListWorkersRequest(), metadata=self._metadata, timeout=SECONDS)
        return tuple(map(_worker, answer.workers))

    def drain(self, worker: str, deadline_seconds: float | None = None) -> Drained:
        """The worker of this target or worker_id takes nothing new; returns when nothing runs there any more."""
        request = pb.DrainWorkerRequest(worker=worker, deadline_seconds=deadline_seconds)
        with told():
            answer = self._stub.Drain(request, metadata=self._metadata)
        return Drained(worker_id=answer.worker_id, unfinished=answer.unfinished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._channel.close()


def drain_directly(target: str, deadline_seconds: float | None = None) -> Drained:
    """The worker that listens at `target` takes nothing new, from any router; returns when nothing runs there any more.

    Raises OctavoErrors.
    """
    deadline_ms = None if deadline_seconds is None else int(1000 * deadline_seconds)
    with rpc.blocking_channel(target) as channel:
        stub: worker_pb2_grpc.WorkerStub = worker_pb2_grpc.WorkerStub(channel)
        try:
            info = stub.GetInfo(worker_pb2.GetInfoRequest(), timeout=SECONDS)
            answer = stub.Drain(worker_pb2.DrainRequest(deadline_ms=deadline_ms))
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)  # every failure of a call is also the Call itself
            if rpc.is_rich(call):
                raise rpc.from_rpc_error(call) from None
            if call.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NotServed("what listens there is no worker") from None
            raise Unreached("the worker cannot be reached, or the connection to it was lost") from None
    return Drained(worker_id=info.worker_id, unfinished=answer.unfinished)
