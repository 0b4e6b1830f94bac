"""A worker's calls about adapters. What they bring about is known here at once, before the worker's own frames tell it."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc
from router.fleet.link import WorkerLink
from shared import rpc
from shared.errors import Unavailable
from shared.types import AdapterInfo
from shared.wire.adapters import adapter_info_from_pb

LOAD_SECONDS = 300.0  # files may come from far
UNLOAD_SECONDS = 30.0

_T = TypeVar("_T")


class WorkerGone(Unavailable):
    """The call did not come to its end: what it brought about is not known. If the worker comes again, it tells what it has."""


async def stage_adapter(link: WorkerLink, name: str, source: str, *, replace: bool, pin: bool) -> AdapterInfo:
    """Returns once the worker has read and checked it: what the name would mean, which means what it did. Raises as `load_adapter`."""
    request = pb.LoadAdapterRequest(name=name, source=source, replace=replace, pin=pin, stage=True)
    return adapter_info_from_pb(await _told(_stub(link).LoadAdapter(request, timeout=LOAD_SECONDS)))


async def load_adapter(
    link: WorkerLink, name: str, source: str, *, replace: bool, pin: bool = False, digest: bytes = b""
) -> AdapterInfo:
    """Returns once the worker's name means it; with `digest` that version and no other. Raises what it refused, or WorkerGone."""
    request = pb.LoadAdapterRequest(name=name, source=source, replace=replace, pin=pin, digest=digest)
    return _noted(link, adapter_info_from_pb(await _told(_stub(link).LoadAdapter(request, timeout=LOAD_SECONDS))))


async def pin_adapter(link: WorkerLink, name: str, pinned: bool) -> AdapterInfo:
    """Raises NotFound, what else the worker refused it with, or WorkerGone."""
    request = pb.PinAdapterRequest(name=name, pinned=pinned)
    return _noted(link, adapter_info_from_pb(await _told(_stub(link).PinAdapter(request, timeout=LOAD_SECONDS))))


async def unload_adapter(link: WorkerLink, name: str) -> None:
    """Raises NotFound, or WorkerGone."""
    await _told(_stub(link).UnloadAdapter(pb.UnloadAdapterRequest(name=name), timeout=UNLOAD_SECONDS))
    if link.worker is not None:
        link.worker.stream.adapters.note_gone(name)


def prefetch_adapter(link: WorkerLink, name: str, digest: bytes) -> None:
    """A request for it may come soon. Returns before anything is written; what comes of it, the worker's frames tell."""
    if link.worker is not None:
        link.worker.stream.outbound.put(pb.Up(prefetch_adapter=pb.PrefetchAdapter(name=name, digest=digest)))


def _stub(link: WorkerLink) -> "worker_pb2_grpc.WorkerAsyncStub":
    if link.stub is None:
        raise WorkerGone("a worker of this model is not connected", retry_after=1.0)
    return link.stub


async def _told(call: Awaitable[_T]) -> _T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if rpc.is_rich(error):
            raise rpc.from_rpc_error(error) from error
        raise WorkerGone("a worker of this model does not answer", retry_after=1.0) from error


def _noted(link: WorkerLink, info: AdapterInfo) -> AdapterInfo:
    if link.worker is not None:
        link.worker.stream.adapters.note(info)
    return info
