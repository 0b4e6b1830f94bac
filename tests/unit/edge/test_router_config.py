"""The router's configuration holds only what can be run."""

from pathlib import Path

import pytest

from router.config import RouterConfig


def test_the_defaults_listen_on_loopback_alone() -> None:
    got = RouterConfig(workers=("127.0.0.1:50061",))
    assert (got.host, got.http_port, got.grpc_port) == ("127.0.0.1", 8000, 50051)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"workers": ()}, "workers"),
        ({"workers": ("host",)}, "workers"),
        ({"workers": (":5",)}, "workers"),
        ({"workers": ("a:1", "a:99999")}, "a:99999"),
        ({"workers": ("a:0",)}, "a:0"),
        ({"host": ""}, "host"),
        ({"http_port": -1}, "http_port"),
        ({"grpc_port": 65_536}, "grpc_port"),
        ({"http_port": 9_000, "grpc_port": 9_000}, "differ"),
        ({"max_body_bytes": 10}, "max_body_bytes"),
        ({"head_seconds": 0.0}, "head_seconds"),
        ({"body_seconds": -1.0}, "body_seconds"),
        ({"max_connections": 0}, "max_connections"),
        ({"request_timeout": -1.0}, "request_timeout"),
        ({"keepalive_seconds": 0.0}, "keepalive_seconds"),
        ({"processes": 0}, "processes"),
        ({"processes": 257}, "processes"),
        ({"admin_listen": "127.0.0.1:8001"}, "admin_listen needs a store"),
        ({"admin_listen": "8001", "store": Path("x")}, "admin_listen: '8001'"),
        ({"admin_grpc_listen": "a:99999", "store": Path("x")}, "admin_grpc_listen: 'a:99999'"),
        ({"drain_seconds": -0.1}, "drain_seconds"),
        ({"drain_seconds": float("inf")}, "drain_seconds"),
    ],
)
def test_what_cannot_be_run_is_named(fields: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RouterConfig(**{"workers": ("a:1",), **fields})
