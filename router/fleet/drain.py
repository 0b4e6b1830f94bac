"""A worker is told to stop taking work, by an operator who reaches only the router."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from protos import worker_pb2 as pb
from router.fleet.link import WorkerLink
from shared import rpc
from shared.errors import NotFound, Unavailable


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained:
    """`unfinished` choices had not ended there by the deadline."""

    worker_id: str
    unfinished: int


async def drain(links: Sequence[WorkerLink], target: str, seconds: float | None) -> Drained:
    """Returns when nothing runs at the worker there any more; with None its own deadline counts. It goes on with it where nobody waits.

    Raises NotFound where there is no such link; Unavailable where the worker is not connected, or is lost meanwhile.
    """
    link = next((link for link in links if link.target == target), None)
    if link is None:
        raise NotFound(f"no worker {target[:200]!r}", param="worker")
    if link.worker is None or link.stub is None:
        raise Unavailable(f"{target} is not connected", retry_after=1.0)
    worker_id = link.worker.info.worker_id
    request = pb.DrainRequest(deadline_ms=None if seconds is None else int(1000 * seconds))
    try:
        answer = await link.stub.Drain(request)
    except grpc.aio.AioRpcError as error:
        if rpc.is_rich(error):
            raise rpc.from_rpc_error(error) from error
        raise Unavailable(f"{target} was lost before it had drained") from error  # gRPC's own words say less
    return Drained(worker_id=worker_id, unfinished=answer.unfinished)
