"""The router's process: both edges and the links to its workers in one event loop.

It prints two JSON lines on stdout: {"event": "listening", "http": "host:port", "grpc": "host:port"} once it listens,
and {"event": "ready"} once some worker serves. With --processes N it starts and watches N of them: see router/processes.
SIGTERM and SIGINT drain it; a second one stops it at once. Exit status: 0 after a drain, 1 where it could not listen or
was stopped at once, 2 for a wrong configuration.
"""

import asyncio
import logging
import os
import resource
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import uvloop
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from router.adapters.start import registry_of
from router.admin.service import Admin
from router.assemble import start_service
from router.bind import Exposed, check_open
from router.config import ENV_PREFIX, RouterConfig
from router.dispatch import RouterService
from router.dispatch.settings import DispatchSettings
from router.edge.admin import admin_edges
from router.edge.gate import Gate
from router.edge.grpc import server as grpc_server
from router.edge.http import server as http_server
from router.edge.http.app import make_app
from router.edge.http.connection import Limits
from router.edge.http.server import DESCRIPTORS_KEPT
from router.exposition import Alone, Exposition
from router.fleet.discovery import where
from router.processes.siblings import Member, Siblings
from router.processes.supervisor import supervise
from router.tenancy.sqlite import schema
from router.tenancy.sqlite.schema import WrongVersion
from router.tenancy.start import Tenancy, tenancy
from shared import config, telemetry
from shared.errors import OctavoError
from shared.process import Stop, keep_all, tell, tune_threads

READY_SECONDS = 0.1  # between two looks at whether some worker serves
LAST_BYTES_SECONDS = 2.0  # for answers on their way when nothing runs any more

_LOG = logging.getLogger("octavo.router")


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


async def _tell_ready(gate: Gate) -> None:
    while not gate.able():  # noqa: ASYNC110 - readiness is a question, not an event
        await asyncio.sleep(READY_SECONDS)
    keep_all()
    tell(event="ready")


async def _drained(gate: Gate, stop: Stop, seconds: float) -> bool:
    """Lets what runs finish, up to `seconds` or the second signal. Whether everything did."""
    idle = asyncio.create_task(gate.idle())
    now = asyncio.create_task(stop.now.wait())
    await asyncio.wait({idle, now}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    now.cancel()
    idle.cancel()
    return gate.open_generations == 0


@asynccontextmanager
async def _operators(
    settings: RouterConfig, tenants: Tenancy, service: RouterService, gate: Gate, *, shared: bool
) -> AsyncIterator[Mapping[str, str]]:
    """The operators' listeners, where any are asked for, inside the block: their addresses."""
    if tenants.store is None or tenants.keyring is None:
        yield {}
        return
    admin = Admin(tenants.store, tenants.keyring, service.workers, service.drain)
    try:
        async with admin_edges(admin, settings, gate.able, shared=shared) as addresses:
            yield addresses
    finally:
        await admin.denials.aclose()


@asynccontextmanager
async def _metrics(
    member: Member | None, registry: CollectorRegistry, named: CollectorRegistry
) -> AsyncIterator[Exposition]:
    """What /metrics shows: this process's, or those of all processes of the router, which this one answers inside the block."""
    alone = Alone(registry, named)
    if member is None:
        yield alone
        return
    siblings = Siblings(member, alone)
    async with siblings.listening():
        yield siblings


@asynccontextmanager
async def _edges(
    settings: RouterConfig, gate: Gate, registry: CollectorRegistry, exposition: Exposition, *, shared: bool
) -> AsyncIterator[Mapping[str, str]]:
    """Both edges; they listen inside the block: their addresses. Raises OSError where a port is taken."""
    app = make_app(
        gate,
        registry,
        version=config.version(),
        max_body_bytes=settings.max_body_bytes,
        keepalive=settings.keepalive_seconds,
        exposition=exposition,
    )
    limits = Limits(
        head_seconds=settings.head_seconds,
        body_seconds=settings.body_seconds,
        connections=settings.max_connections,
    )
    http = await http_server.start(app, settings.host, settings.http_port, limits, shared=shared)
    try:
        rpc = await grpc_server.start(
            gate, settings.host, settings.grpc_port, head_seconds=settings.head_seconds, shared=shared
        )
        try:
            yield {"http": http.address, "grpc": rpc.address}
        finally:
            await rpc.stop(LAST_BYTES_SECONDS)
    finally:
        await http.stop(LAST_BYTES_SECONDS)


def _allow_connections(wanted: int) -> None:
    """Raises the soft limit of open files, as far as the hard one lets, to what so many connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + DESCRIPTORS_KEPT
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        _LOG.warning("max_connections is %d, but this process may open only %d files", wanted, allowed)


async def serve(settings: RouterConfig, member: Member | None = None) -> int:
    """Runs the router until it is told to stop; its exit status. `member`: it is one of several processes.

    Raises OSError where it cannot listen, Exposed where it must not."""
    _allow_connections(settings.max_connections)
    stop, registry = Stop(), _registry()
    stop.install()
    async with tenancy(settings.store, make=member is None) as tenants:  # else it was there before the processes
        if tenants.open and not settings.allow_open:
            check_open(settings.host)
        return await _serve(settings, tenants, stop, registry, member)


async def _serve(
    settings: RouterConfig, tenants: Tenancy, stop: Stop, registry: CollectorRegistry, member: Member | None
) -> int:
    dispatch = DispatchSettings(policy=settings.policy, resume=settings.resume, coalesce=settings.coalesce_ms / 1000)
    named = CollectorRegistry()  # metrics that name tenants
    service = await start_service(
        where(settings.workers, settings.workers_file),
        registry=registry,
        dispatch=dispatch,
        admission=tenants.admission,
        tenants=named,
        prefixes=tenants.prefixes,
        adapters=registry_of(tenants),
    )
    gate = Gate(
        service,
        timeout=settings.request_timeout or None,
        authenticator=tenants.authenticator,
        all_up=member.all_up if member else lambda: True,
    )
    try:
        async with (
            _metrics(member, registry, named) as exposition,
            _operators(settings, tenants, service, gate, shared=member is not None) as operators,
            _edges(settings, gate, registry, exposition, shared=member is not None) as edges,
        ):
            tell(event="listening", **edges, **operators)
            ready = asyncio.create_task(_tell_ready(gate))
            await stop.drain.wait()
            ready.cancel()
            gate.close()
            _LOG.info("draining: %d requests run", gate.open_generations)
            whole = await _drained(gate, stop, settings.drain_seconds)
            if not whole:
                _LOG.warning("stopping with %d requests running", gate.open_generations)
                await service.aclose()
    finally:
        await service.aclose()
    return 1 if stop.now.is_set() else 0


def run(arguments: Sequence[str], member: Member | None = None) -> int:
    """A router process with these flags, or what starts and watches several; its exit status."""
    settings = config.load(RouterConfig, arguments, prog="octavo-router", env_prefix=ENV_PREFIX, environ=os.environ)
    telemetry.setup_logging(settings.log_level)
    tune_threads()
    if member is None and settings.processes > 1:
        return _told(lambda: _supervise(settings, arguments))
    flush = telemetry.setup_tracing("octavo-router", os.environ)
    try:
        return _told(lambda: uvloop.run(serve(settings, member)))
    finally:
        flush()


def _supervise(settings: RouterConfig, arguments: Sequence[str]) -> int:
    """The store is made once: a process that starts again when it was deleted must not make an empty one, which lets everybody in."""
    if settings.store is not None:
        schema.make(settings.store)
    return asyncio.run(supervise(settings, arguments))


def _told(work: Callable[[], int]) -> int:
    """What `work` gives; the exit status of what it cannot do, which is said in one line."""
    try:
        return work()
    except (OSError, sqlite3.Error, WrongVersion, OctavoError) as error:
        sys.stderr.write(f"octavo-router: {error}\n")
        return 1
    except Exposed as error:
        sys.stderr.write(f"octavo-router: {error}\n")
        return 2


def main(argv: Sequence[str] | None = None) -> int:
    """The `octavo-router` command."""
    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
