"""`octavo serve`: a worker (or several) and a router on this machine, until told to stop."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from octavo.cli.announce import Announcer, Json, Text
from octavo.cli.arguments import real, target, whole
from octavo.cli.pull import fetched
from octavo.cli.stored import on_store
from octavo.supervise.stack import Stack, StackConfig, free_ports
from router.bind import Exposed, check_open
from shared.errors import InvalidRequest
from shared.supervise.supervised import StartFailed

DEFAULTS = StackConfig(model="", served_name="")
MOST_PORT = (1 << 16) - 1
MOST_WORKERS = 64
ADAPTER_SLOTS = 16  # unless a worker's own arguments say otherwise
ROUTERS_STORE = ("OCTAVO_ROUTER_STORE", "OCTAVO_ROUTER_CONFIG")  # which the router reads itself, as these
ROUTERS_OWN = (*ROUTERS_STORE, "OCTAVO_ROUTER_ALLOW_OPEN")


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "serve",
        help="serve a model on this machine",
        description="Start workers and a router for MODEL, keep them running, and drain them on SIGTERM or Ctrl-C "
        "(a second one stops at once).",
        epilog="Arguments behind a lone -- go to each worker: octavo serve demo -- --max-running 16. "
        "See octavo-worker --help.",
    )
    parser.add_argument("model", metavar="MODEL", help="a directory, a .gguf file, a Hugging Face Hub id, or demo")
    parser.add_argument("--host", default=DEFAULTS.host, help="address to listen on (%(default)s)")
    parser.add_argument(
        "--allow-open", action="store_true", help="listen elsewhere than on loopback though nobody needs a key"
    )
    parser.add_argument(
        "--port", type=whole(0, MOST_PORT), default=DEFAULTS.port, help="of the HTTP API (%(default)s; 0: a free one)"
    )
    parser.add_argument(
        "--grpc-port", type=whole(0, MOST_PORT), default=DEFAULTS.grpc_port, help="of the gRPC API (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=whole(1, MOST_WORKERS), default=DEFAULTS.workers, help="worker processes (%(default)s)"
    )
    parser.add_argument(
        "--adapter-dir", metavar="DIR", type=Path, help=f"serve the LoRA adapters in DIR, {ADAPTER_SLOTS} at once"
    )
    parser.add_argument(
        "--store",
        metavar="PATH",
        type=Path,
        help="the database of tenants, keys, limits and usage, made where there is none ($OCTAVO_ROUTER_STORE)",
    )
    _add_admin(parser)
    parser.add_argument("--name", help="the model's name in the API (the directory's or file's name)")
    parser.add_argument(
        "--drain-seconds",
        type=real(0),
        default=DEFAULTS.drain_seconds,
        help="for running requests at the end (%(default)s)",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default=DEFAULTS.log_level, help="(%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="tell what happens as JSON lines")
    parser.set_defaults(run=run, takes_rest=True)


def _add_admin(parser: argparse.ArgumentParser) -> None:
    operators = (("--admin-listen", "HTTP API (/admin/v1)"), ("--admin-grpc-listen", "gRPC API (octavo.v1.Admin)"))
    for flag, what in operators:
        parser.add_argument(
            flag, type=target, metavar="HOST:PORT", help=f"serve the operators' {what} there; needs a store"
        )


def served_name(given: str, path: Path) -> str:
    """The name that the API gives a model where the user gave none: a Hub id itself, else the directory's or file's name."""
    return given if "/" in given and path != Path(given) else path.resolve().name.removesuffix(".gguf")


def _adapters(directory: Path | None) -> tuple[str, ...]:
    """What each worker is told of a directory of adapters."""
    if directory is None:
        return ()
    return ("--adapter-dir", str(directory.resolve()), "--max-adapters", str(ADAPTER_SLOTS))


def _settings(arguments: argparse.Namespace, path: Path) -> StackConfig:
    return StackConfig(
        model=str(path),
        served_name=arguments.name or served_name(arguments.model, path),
        host=arguments.host,
        allow_open=arguments.allow_open,
        port=arguments.port,
        grpc_port=arguments.grpc_port,
        workers=arguments.workers,
        drain_seconds=arguments.drain_seconds,
        log_level=arguments.log_level,
        store=arguments.store.resolve() if arguments.store else None,
        admin_listen=arguments.admin_listen,
        admin_grpc_listen=arguments.admin_grpc_listen,
        worker_arguments=(*_adapters(arguments.adapter_dir), *arguments.rest),
    )


class _Signals:
    """The first SIGTERM or SIGINT asks for a drain, the second for the end."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.now = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.now if self.stop.is_set() else self.stop).set()


async def _up(stack: Stack, config: StackConfig, announcer: Announcer) -> None:
    endpoints = await stack.start()
    if config.store is not None:
        announcer.state(f"tenants are in {config.store}: once there is one, requests need a key (octavo key create)")
    if config.admin_listen:
        announcer.state(f"operators' API: http://{config.admin_listen}/admin/v1 (a key with the scope admin)")
    if config.admin_grpc_listen:
        announcer.state(f"operators' gRPC: {config.admin_grpc_listen} (a key with the scope admin)")
    announcer.ready(config.served_name, endpoints)
    await stack.watch()


async def _until_stopped(stack: Stack, config: StackConfig, announcer: Announcer, stop: asyncio.Event) -> None:
    """Starts the stack and waits; returns when told to stop, also on the way up."""
    stopping = asyncio.create_task(stop.wait())
    up = asyncio.create_task(_up(stack, config, announcer))
    try:
        await asyncio.wait({up, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            up.result()
    finally:
        up.cancel()
        stopping.cancel()


async def serve(config: StackConfig, announcer: Announcer) -> int:
    """Serves until a signal; the command's exit status."""
    signals = _Signals()
    stack = Stack(free_ports(config, announcer), announcer)
    status = 0
    try:
        await _until_stopped(stack, config, announcer, signals.stop)
        announcer.state("draining")
    except StartFailed as failed:
        announcer.notice(f"cannot serve {config.served_name}: {failed}")
        status = 2 if failed.status == 2 else 1
    finally:
        await stack.stop(signals.now)
    announcer.state("stopped")
    return 1 if signals.now.is_set() else status


def _check_open(arguments: argparse.Namespace) -> None:
    """Raises Exposed, OSError, or what is wrong with the store, before anything is loaded. Where the router has settings of its own, it is
    left to the router."""
    if arguments.store is not None:
        is_open = not on_store(arguments.store, lambda store: store.snapshot(), make=True).tenancy
    else:
        is_open = not any(name in os.environ for name in ROUTERS_OWN)
    if is_open and not arguments.allow_open and "OCTAVO_ROUTER_ALLOW_OPEN" not in os.environ:
        check_open(arguments.host)


def _check(arguments: argparse.Namespace) -> None:
    """Raises Exposed, OSError, InvalidRequest, or what is wrong with the store, before anything is loaded."""
    if arguments.adapter_dir is not None and not arguments.adapter_dir.is_dir():
        raise InvalidRequest(f"--adapter-dir: {arguments.adapter_dir} is no directory")
    operators = arguments.admin_listen or arguments.admin_grpc_listen
    if operators and arguments.store is None and not any(name in os.environ for name in ROUTERS_STORE):
        raise InvalidRequest(f"the operators' API at {operators} needs tenants' keys: --store PATH")
    _check_open(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Pulls the model first where it must."""
    announcer: Announcer = Json() if arguments.json else Text()
    try:
        _check(arguments)
    except (Exposed, InvalidRequest) as error:
        sys.stderr.write(f"octavo serve: {error}\n")
        return 2
    path = fetched(arguments.model, announcer.state)
    try:
        return asyncio.run(serve(_settings(arguments, path), announcer))
    except OSError as error:
        sys.stderr.write(f"octavo serve: {error}\n")
        return 1
