"""The router's configuration. Flags, OCTAVO_ROUTER_... and YAML derive from these fields (shared/config.py)."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from router.edge.ports import split
from router.fleet.targets import check_target
from shared.config import ByteSize

ENV_PREFIX = "OCTAVO_ROUTER_"

MOST_PROCESSES = 256

LogLevel = Literal["debug", "info", "warning", "error"]


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterConfig:
    """Octavo's router: speaks OpenAI's API and gRPC to clients, and tokens to workers."""

    host: str = field(default="127.0.0.1", metadata=_help("address to listen on"))
    http_port: int = field(default=8000, metadata=_help("port of the HTTP API; 0 takes a free one"))
    grpc_port: int = field(default=50051, metadata=_help("port of the gRPC API; 0 takes a free one"))
    processes: int = field(
        default=1, metadata=_help("router processes on these ports; more than one are kept running by one beside them")
    )
    workers: tuple[str, ...] = field(
        default=(),
        metadata=_help(
            "host:port of every worker; dns:///name:port: every address of a name, looked up again and again"
        ),
    )
    workers_file: Path | None = field(
        default=None, metadata=_help("a file of workers, host:port a line, read again as it changes")
    )
    policy: Literal["cost", "least_loaded", "round_robin", "session"] = field(
        default="cost",
        metadata=_help(
            "which worker gets a request: by cost, the least seconds with its cache counted; the least_loaded; each in turn; or "
            "by session, the same for prompts that begin alike"
        ),
    )
    resume: Literal["any", "exact"] = field(
        default="any",
        metadata=_help(
            "where a lost worker's streams go on: anywhere, then marked, or only where the same tokens come out"
        ),
    )
    max_body_bytes: ByteSize = field(default=ByteSize(4 << 20), metadata=_help("largest HTTP body that is read"))
    head_seconds: float = field(
        default=10.0, metadata=_help("seconds in which an HTTP request's head, or gRPC's handshake, must arrive")
    )
    body_seconds: float = field(default=60.0, metadata=_help("seconds in which an HTTP request's body must arrive"))
    max_connections: int = field(
        default=4_096, metadata=_help("most HTTP connections; whoever waits longest for a request makes room")
    )
    coalesce_ms: float = field(
        default=20.0,
        metadata=_help("most milliseconds that tokens of busy streams wait to go together, never first ones; 0: none"),
    )
    request_timeout: float = field(default=0.0, metadata=_help("seconds that any request may take; 0 sets no limit"))
    keepalive_seconds: float = field(default=15.0, metadata=_help("silence after which an HTTP stream gets a comment"))
    drain_seconds: float = field(
        default=30.0, metadata=_help("seconds that running requests get when the router is told to stop")
    )
    store: Path | None = field(
        default=None,
        metadata=_help(
            "the database of tenants, keys, limits and usage, made where there is none; without, all are let in"
        ),
    )
    admin_listen: str | None = field(
        default=None,
        metadata=_help("host:port of the operators' HTTP API (/admin/v1); every call needs a key with the scope admin"),
    )
    admin_grpc_listen: str | None = field(
        default=None, metadata=_help("host:port of the operators' gRPC API (octavo.v1.Admin); as admin_listen")
    )
    allow_open: bool = field(
        default=False,
        metadata=_help("listen elsewhere than on loopback though nobody needs a key (no tenant was made)"),
    )
    log_level: LogLevel = field(default="info", metadata=_help("what is logged, on stderr"))

    def __post_init__(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        _check(bool(self.host), "host must not be empty")
        for name in ("http_port", "grpc_port"):
            _check(0 <= getattr(self, name) < 1 << 16, f"{name} must be from 0 to 65535")
        _check(self.http_port != self.grpc_port or self.http_port == 0, "http_port and grpc_port must differ")
        for name in ("admin_listen", "admin_grpc_listen"):
            self._check_admin(name)
        _check(1 <= self.processes <= MOST_PROCESSES, f"processes must be from 1 to {MOST_PROCESSES}")
        _check(
            bool(self.workers or self.workers_file),
            "no workers: name them by --workers host:port,..., or a file of them by --workers-file",
        )
        for target in self.workers:
            try:
                check_target(target)
            except ValueError as error:
                raise ValueError(f"workers: {error}") from None
        _check(self.max_body_bytes >= 1024, "max_body_bytes must be at least 1024")
        for name in ("head_seconds", "body_seconds"):
            _check(0 < getattr(self, name) < math.inf, f"{name} must be finite and positive")
        _check(self.max_connections >= 1, "max_connections must be at least 1")
        _check(0 <= self.coalesce_ms <= 1_000, "coalesce_ms must be from 0 to 1000")
        _check(0 <= self.request_timeout < math.inf, "request_timeout must be finite and not negative")
        _check(0 < self.keepalive_seconds < math.inf, "keepalive_seconds must be finite and positive")
        _check(0 <= self.drain_seconds < math.inf, "drain_seconds must be finite and not negative")

    def _check_admin(self, name: str) -> None:
        address = getattr(self, name)
        if address is None:
            return
        try:
            split(address)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        _check(self.store is not None, f"{name} needs a store")
