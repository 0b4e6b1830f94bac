"""A worker's calls about adapters. What they bring about is known here at once, before the worker's own frames tell it."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from router.fleet.link import WorkerLink
from shared import rpc
from shared.errors import Unavailable
from shared.types import AdapterInfo, AdapterState
from shared.wire.adapters import adapter_info_from_pb

LOAD_SECONDS = 300.0  # files may come from far
UNLOAD_SECONDS = 30.0

_T = TypeVar("_T")


async def load_adapter(link: WorkerLink, name: str, source: str, *, replace: bool) -> AdapterInfo:
    """Returns once the worker has read and checked it. Raises what the worker refused it with, or Unavailable."""
    request = pb.LoadAdapterRequest(name=name, source=source, replace=replace)
    info = adapter_info_from_pb(await _told(_stub(link).LoadAdapter(request, timeout=LOAD_SECONDS)))
    _note(link, AdapterState(entries=(info,)))
    return info


async def unload_adapter(link: WorkerLink, name: str) -> None:
    """Raises NotFound, or Unavailable."""
    await _told(_stub(link).UnloadAdapter(pb.UnloadAdapterRequest(name=name), timeout=UNLOAD_SECONDS))
    _note(link, AdapterState(removed=(name,)))


def _stub(link: WorkerLink) -> "worker_pb2_grpc.WorkerAsyncStub":
    if link.stub is None:
        raise Unavailable("a worker of this model is not connected", retry_after=1.0)
    return link.stub


async def _told(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if rpc.is_rich(error):
            raise rpc.from_rpc_error(error) from error
        raise Unavailable("a worker of this model does not answer", retry_after=1.0) from error


def _note(link: WorkerLink, state: AdapterState) -> None:
    if link.worker is not None:
        link.worker.stream.adapters.take(state)
