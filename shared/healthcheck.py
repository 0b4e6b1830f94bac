"""Asks a server for its gRPC health: `python -m shared.healthcheck HOST:PORT`. Made for containers, whose images hold no other client.

Exit status: 0 when it is SERVING, 1 when it is not or does not answer within the timeout, 2 on wrong usage.
"""

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2

TIMEOUT = 3.0  # seconds


def status(target: str, timeout: float = TIMEOUT) -> str:
    """The name of the server's overall status, or of the gRPC status with which the question failed."""
    with grpc.insecure_channel(target) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main(argv: Sequence[str]) -> int:
    """The process: prints the status."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    found = status(argv[0])
    print(found)  # noqa: T201
    return 0 if found == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
