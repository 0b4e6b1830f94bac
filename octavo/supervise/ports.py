"""Ports of this machine."""

import errno
import socket

# EACCES: a privileged port, which a free one replaces as well.
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on `host:port` now. Raises OSError where the host is no address of this machine."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
    return True


def with_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(address: str) -> int:
    """The port of `host:port`."""
    return int(address.rpartition(":")[2])
