"""Where a router that lets everyone in may listen: on loopback, unless it is told that elsewhere is meant."""

import ipaddress
import socket

REFUSED = (
    "nobody needs a key yet, so listening on {host} would let in whoever reaches it. "
    "Make a tenant (octavo tenant apply, octavo key create) and name the store (--store, OCTAVO_ROUTER_STORE); "
    "or say --allow-open; or listen on 127.0.0.1"
)


class Exposed(ValueError):
    """Whoever reaches this address would be let in."""

    def __init__(self, host: str):
        super().__init__(REFUSED.format(host=host))


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is this machine's own, reached by nobody else. Raises OSError where it has none."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def check_open(host: str) -> None:
    """Raises Exposed where a router that lets everyone in would be reached from elsewhere; OSError as `is_loopback`."""
    if not is_loopback(host):
        raise Exposed(host)
