"""Ports that are taken are not asked for."""

import socket

import pytest

from octavo.supervise.ports import is_free, port_of, with_port
from octavo.supervise.stack import StackConfig, free_ports
from tests.fakes.report import Told


def test_a_taken_port_is_replaced_by_a_free_one_with_a_notice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        told = Told()
        config = free_ports(StackConfig(model="m", served_name="m", port=port, grpc_port=0), told)
    assert (config.port, config.grpc_port) == (0, 0)
    assert told.notices == [f"127.0.0.1:{port} is taken; using a free port instead"]
    assert is_free("127.0.0.1", port)


def test_a_free_port_is_kept_without_a_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    told = Told()
    assert free_ports(StackConfig(model="m", served_name="m", port=port, grpc_port=0), told).port == port
    assert told.notices == []


def test_a_host_that_is_not_this_machines_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        is_free("192.0.2.1", 8000)


def test_addresses_of_both_families_are_written_and_read() -> None:
    assert with_port("127.0.0.1", 80) == "127.0.0.1:80"
    assert with_port("::1", 80) == "[::1]:80"
    assert port_of("[::1]:80") == 80
