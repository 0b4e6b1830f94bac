"""The worker's gRPC server: the Worker service, health, reflection."""

import socket
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import worker_pb2 as pb
from protos import worker_pb2_grpc as pb_grpc
from shared import rpc
from shared.health import HealthServicer
from worker.servicer.servicer import WorkerServicer

WORKER = pb.DESCRIPTOR.services_by_name["Worker"].full_name


class WorkerServer:
    """Listens once `start` has returned; `address` is what it got, also for port 0."""

    def __init__(self, server: grpc.aio.Server, address: str):
        self._server = server
        self.address = address

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls at once; gives running ones `grace` seconds, then cancels them."""
        await self._server.stop(grace)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_free(host: str, port: int) -> None:
    """Raises OSError that says why: gRPC reports a port in use by several lines on stderr and no reason."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {_joined(host, port)}: {why}") from error


async def start(servicer: WorkerServicer, host: str, port: int) -> WorkerServer:
    """Raises OSError where the port is taken."""
    server = rpc.server(receive_limit=rpc.INTERNAL_RECEIVE_LIMIT)
    services: Sequence[str] = (WORKER, health.SERVICE_NAME, reflection.SERVICE_NAME)
    pb_grpc.add_WorkerServicer_to_server(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(servicer.serving, frozenset(services)), server)
    reflection.enable_server_reflection(services, server)
    _check_free(host, port)
    try:
        bound = server.add_insecure_port(_joined(host, port))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {_joined(host, port)}") from error
    await server.start()
    return WorkerServer(server, _joined(host, bound))
