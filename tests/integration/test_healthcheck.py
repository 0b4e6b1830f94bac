"""The containers' health check, asked of real servers on loopback."""

import socket
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared import healthcheck


@pytest.fixture
def servicer() -> health.HealthServicer:
    return health.HealthServicer()


@pytest.fixture
def target(servicer: health.HealthServicer) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait(10)


@pytest.mark.parametrize(("status", "code"), [("SERVING", 0), ("NOT_SERVING", 1)])
def test_the_exit_status_is_the_servers_health(
    servicer: health.HealthServicer, target: str, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    assert healthcheck.main([target]) == code
    assert capsys.readouterr().out.strip() == status


def test_a_server_that_is_not_there_is_unhealthy() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, and nobody listens
        assert healthcheck.status(f"127.0.0.1:{held.getsockname()[1]}") == "UNAVAILABLE"


def test_a_server_that_does_not_answer_is_unhealthy_in_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert healthcheck.status(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) in {
            "DEADLINE_EXCEEDED",
            "UNAVAILABLE",
        }


def test_a_wrong_call_is_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck.main([]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
