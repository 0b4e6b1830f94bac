"""The gRPC server of the operators' API."""

from collections.abc import Callable, Sequence

from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import admin_pb2 as pb
from protos import admin_pb2_grpc as pb_grpc
from router.admin.service import Admin
from router.edge.grpc.admin.servicer import AdminServicer
from router.edge.grpc.decoding import DecodingInterceptor
from router.edge.grpc.server import GrpcServer, begun
from shared import rpc
from shared.health import HealthServicer

ADMIN = pb.DESCRIPTOR.services_by_name["Admin"].full_name


async def start(admin: Admin, ready: Callable[[], bool], host: str, port: int, *, shared: bool = False) -> GrpcServer:
    """`shared`: other processes listen there too. Raises OSError where the port is taken."""
    services: Sequence[str] = (ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)
    options = (("grpc.so_reuseport", int(shared)),)
    server = rpc.server(
        receive_limit=rpc.PUBLIC_RECEIVE_LIMIT, interceptors=[DecodingInterceptor(ADMIN)], options=options
    )
    pb_grpc.add_AdminServicer_to_server(AdminServicer(admin), server)
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(ready, frozenset(services)), server)
    reflection.enable_server_reflection(services, server)
    return await begun(server, host, port, shared=shared)
