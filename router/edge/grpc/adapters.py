"""octavo.v1.Adapters over the gate."""

from protos import adapters_pb2 as pb
from protos import adapters_pb2_grpc as pb_grpc
from router.adapters.report import AdapterAt, AdapterReport
from router.edge.gate import Gate
from router.edge.grpc.calls import Context, caller_of, told
from router.edge.local import host_of_peer, require_local
from router.tenancy.caller import Caller
from shared.errors import InvalidRequest
from shared.types import AdapterLevel

MAX_NAME = 256
MAX_SOURCE = 4_096

_RESIDENCE = {
    AdapterLevel.SOURCE: pb.ADAPTER_RESIDENCE_SOURCE,
    AdapterLevel.HOST: pb.ADAPTER_RESIDENCE_HOST,
    AdapterLevel.DEVICE: pb.ADAPTER_RESIDENCE_DEVICE,
}


def _checked(name: str, source: str = "") -> None:
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidRequest(f"name must have 1 to {MAX_NAME} characters", param="name")
    if len(source) > MAX_SOURCE:
        raise InvalidRequest(f"source must have at most {MAX_SOURCE} characters", param="source")


def _at_to_pb(at: AdapterAt) -> pb.AdapterAtWorker:
    if at.info is None:
        return pb.AdapterAtWorker(worker_id=at.worker, error=at.error)
    return pb.AdapterAtWorker(
        worker_id=at.worker,
        level=_RESIDENCE[at.info.level],
        digest=at.info.digest,
        bytes=at.info.bytes,
        pinned=at.info.pinned,
        loaded=at.info.loaded_unix_ms // 1000,
        error=at.error,
    )


def report_to_pb(report: AdapterReport) -> pb.Adapter:
    """As it is."""
    return pb.Adapter(
        name=report.name,
        model=report.model,
        digest=report.digest,
        rank=report.rank,
        bytes=report.bytes,
        pinned=report.pinned,
        loaded=report.loaded_unix_ms // 1000,
        registered=report.registered,
        source=report.source,
        workers=[_at_to_pb(at) for at in report.workers],
    )


class AdaptersServicer(pb_grpc.AdaptersServicer):
    """Everything else stands behind the gate's operator."""

    def __init__(self, gate: Gate):
        self._gate = gate

    def _caller(self, context: Context) -> Caller:
        """Raises Unauthenticated, PermissionDenied."""
        return require_local(caller_of(self._gate, context), host_of_peer(context.peer() or ""))

    async def List(self, request: pb.AdaptersListRequest, context: Context) -> pb.AdaptersListResponse:
        """All that the caller sees."""
        async with told(context):
            reports = self._gate.operator.list(self._caller(context), model=request.model)
            return pb.AdaptersListResponse(adapters=[report_to_pb(report) for report in reports])

    async def Load(self, request: pb.AdaptersLoadRequest, context: Context) -> pb.Adapter:
        """At every worker, or at none."""
        async with told(context):
            caller = self._caller(context)
            _checked(request.name, request.source)
            report = await self._gate.operator.load(
                caller, request.name, request.source, model=request.model, replace=request.replace, pin=request.pin
            )
            return report_to_pb(report)

    async def Unload(self, request: pb.AdaptersUnloadRequest, context: Context) -> pb.AdaptersUnloadResponse:
        """From every worker."""
        async with told(context):
            caller = self._caller(context)
            _checked(request.name)
            name = await self._gate.operator.unload(caller, request.name, model=request.model)
            return pb.AdaptersUnloadResponse(name=name)

    async def Pin(self, request: pb.AdaptersPinRequest, context: Context) -> pb.Adapter:
        """At every worker that has it, or at none."""
        async with told(context):
            caller = self._caller(context)
            _checked(request.name)
            report = await self._gate.operator.pin(caller, request.name, request.pinned, model=request.model)
            return report_to_pb(report)
