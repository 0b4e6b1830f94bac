"""Addresses to listen on."""

import socket

BACKLOG = 2_048


def joined(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, purpose: str) -> socket.socket:
    """A listening socket. Raises OSError whose message names the address and the purpose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {joined(host, port)} for {purpose}: {why}") from error
