"""Addresses to listen on."""

import socket

BACKLOG = 2_048


def joined(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Host and port of host:port, without brackets. Raises ValueError where it is none."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def _refused(host: str, port: int, purpose: str, error: Exception) -> OSError:
    why = getattr(error, "strerror", None) or error
    return OSError(f"cannot listen on {joined(host, port)} for {purpose}: {why}")


def listen(host: str, port: int, purpose: str, *, shared: bool = False) -> socket.socket:
    """A listening socket; `shared`: others may listen there too. Raises OSError whose message names the address and the purpose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=shared)
    except (OSError, UnicodeError) as error:
        raise _refused(host, port, purpose, error) from error


def reserve(host: str, port: int, purpose: str) -> socket.socket:
    """A socket that never listens, and keeps the port for processes of this user that share it. Raises OSError as `listen`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listen(host, port, purpose) as probe:  # fails where others share the port already
        port = probe.getsockname()[1]
    held = socket.socket(family)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise _refused(host, port, purpose, error) from error
    return held
