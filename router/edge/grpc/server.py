"""The gRPC server of the public API."""

from collections.abc import Callable, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import adapters_pb2, adapters_pb2_grpc
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as pb_grpc
from router.edge.gate import Gate
from router.edge.grpc.adapters import AdaptersServicer
from router.edge.grpc.calls import Context, caller_of
from router.edge.grpc.decoding import DecodingInterceptor
from router.edge.grpc.servicer import InferenceServicer
from router.edge.ports import joined, listen
from router.edge.record import recorded
from shared import rpc
from shared.errors import OctavoError
from shared.health import HealthServicer

MAX_CALLS = 4_096  # at once on one connection; what is beyond waits in its client
IDLE_SECONDS = 600.0

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
ADAPTERS = adapters_pb2.DESCRIPTOR.services_by_name["Adapters"].full_name


class GrpcServer:
    """Listens once `start` has returned; `address` is what it got, also for port 0."""

    def __init__(self, server: grpc.aio.Server, address: str):
        self._server = server
        self.address = address

    async def stop(self, grace: float) -> None:
        """Refuses new calls at once; gives running ones `grace` seconds, then cancels them."""
        await self._server.stop(grace)


def _serve(server: grpc.aio.Server, gate: Gate) -> None:
    services: Sequence[str] = (INFERENCE, ADAPTERS, health.SERVICE_NAME, reflection.SERVICE_NAME)
    pb_grpc.add_InferenceServicer_to_server(InferenceServicer(gate), server)
    adapters_pb2_grpc.add_AdaptersServicer_to_server(AdaptersServicer(gate), server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(gate.ready, frozenset(services)), server)
    reflection.enable_server_reflection(services, server)


def _public(head_seconds: float) -> rpc.Options:
    """Bounds of what a stranger may hold open: half a handshake, calls on one connection, a connection without any."""
    return (
        ("grpc.server_handshake_timeout_ms", int(1000 * head_seconds)),
        ("grpc.max_concurrent_streams", MAX_CALLS),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
    )


def _at_the_door(gate: Gate) -> Callable[[Context], None]:
    """Raises what keeps a generation out whatever it asks for."""

    def check(context: Context) -> None:
        try:
            gate.door.check(caller_of(gate, context))
        except OctavoError:
            with recorded("Generate"):
                raise

    return check


async def start(gate: Gate, host: str, port: int, *, head_seconds: float = 10.0, shared: bool = False) -> GrpcServer:
    """`head_seconds` is what a connection may take to become one of HTTP/2; `shared`: other processes listen there too.

    Raises OSError where the port is taken.
    """
    decoding = (DecodingInterceptor(INFERENCE, {"Generate": _at_the_door(gate)}), DecodingInterceptor(ADAPTERS))
    options = (*_public(head_seconds), ("grpc.so_reuseport", int(shared)))
    server = rpc.server(receive_limit=rpc.PUBLIC_RECEIVE_LIMIT, interceptors=[*decoding], options=options)
    _serve(server, gate)
    return await begun(server, host, port, shared=shared)


async def begun(server: grpc.aio.Server, host: str, port: int, *, shared: bool) -> GrpcServer:
    """`server`, listening. Raises OSError where the port is taken."""
    if not shared:
        # gRPC reports a port in use by several lines on stderr and no reason: ask the system first.
        listen(host, port, "gRPC").close()
    try:
        bound = server.add_insecure_port(joined(host, port))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {joined(host, port)} for gRPC") from error
    await server.start()
    return GrpcServer(server, joined(host, bound))
