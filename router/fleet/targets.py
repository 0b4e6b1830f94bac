"""How the address of a worker is written."""

import ipaddress

SCHEME = "dns:///"

Targets = tuple[str, ...]  # host:port, each once


def split_target(target: str) -> tuple[str, int]:
    """Host and port of host:port, the host of an IPv6 address in brackets. Raises ValueError saying what is wrong."""
    host, _, port = target.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not bare
        or any(each.isspace() or each in "/[],?#" for each in bare)
        or not (port.isascii() and port.isdecimal())
    ):
        raise ValueError(f"{target!r} is not host:port")
    if not bare.isprintable():
        raise ValueError(f"{target!r} is not host:port: it has characters that cannot be seen")
    if bare == host and ":" in host:
        raise ValueError(f"{target!r} is not host:port: an IPv6 address stands in brackets")
    if not 0 < int(port) < 1 << 16:
        raise ValueError(f"the port of {target!r} must be from 1 to 65535")
    return bare, int(port)


def check_target(target: str) -> None:
    """Of a list: host:port, or dns:///name:port. Raises ValueError."""
    if "/" in target.removeprefix(SCHEME) or (target.startswith("dns:") and not target.startswith(SCHEME)):
        raise ValueError(f"{target!r} is not host:port, nor {SCHEME}name:port")
    split_target(target.removeprefix(SCHEME))


def joined(address: str, port: int) -> str:
    """host:port of an IP address. Raises ValueError where it is none."""
    name = address.partition("%")[0]
    return f"[{address}]:{port}" if ipaddress.ip_address(name).version == 6 else f"{address}:{port}"


class BadFile(ValueError):
    """Lines that are no addresses."""


def parse(text: str) -> Targets:
    """One host:port a line; what follows # is a remark. Raises BadFile naming every line that is wrong."""
    targets, wrong = list[str](), []
    for number, line in enumerate(text.splitlines(), 1):
        target = line.partition("#")[0].strip()
        if not target:
            continue
        try:
            split_target(target)
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
        targets.append(target)
    if wrong:
        raise BadFile("; ".join(wrong[:10]))
    return tuple(dict.fromkeys(targets))
