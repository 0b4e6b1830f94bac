"""Where nobody needs a key, what changes the server is for its own machine alone."""

from ipaddress import ip_address

from router.tenancy.caller import OPEN_CALLER, Caller
from shared.errors import PermissionDenied


def require_local(caller: Caller, host: str) -> Caller:
    """The caller. Raises PermissionDenied where it has no key, needs none, and calls from another machine."""
    if caller is OPEN_CALLER and not is_loopback(host):
        raise PermissionDenied("without keys, adapters are listed, loaded and unloaded from this machine alone")
    return caller


def is_loopback(host: str) -> bool:
    """Whether the address is this machine's to itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_of_peer(peer: str) -> str:
    """The address in what gRPC calls a peer: ipv4:ADDRESS:PORT, or ipv6:%5BADDRESS%5D:PORT; anything else is no address."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return host.strip("[]")
