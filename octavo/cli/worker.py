"""`octavo worker`: the workers behind a router, listed and drained."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import add_api_key, real, target
from octavo.cli.columns import columns
from octavo.cli.reach import OPERATORS, WORKER, reaching
from shared.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.client.workers import Drained, OperatorClient

HEAD = ("TARGET", "STATE", "WORKER", "MODEL", "RUNNING", "WAITING", "FREE", "VERSION")
MOST_SECONDS = 86_400.0

_ABOUT = """Work on the workers behind a router. A router tells of them where it has --admin-grpc-listen; the key needs the scope admin."""
_DRAIN = """Have a worker take nothing new, from any router. What runs there goes on to its end; what has not ended by the deadline goes on
at another worker of the model. The command ends when nothing runs there any more, and the process can be stopped. Whoever interrupts the
command does not interrupt the drain. A worker that has drained stays so until it is started anew."""


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser("worker", help="workers of a running router: list, drain", description=_ABOUT)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    text = "every worker that the router knows, and how it stands"
    _add_target(_add(actions, "list", _list, text, text), required=True)
    drain = _add(actions, "drain", _drain, "have a worker take nothing new, and wait until nothing runs there", _DRAIN)
    drain.add_argument("worker", metavar="WORKER", help="its target (host:port) or worker id, as list tells them")
    way = drain.add_mutually_exclusive_group(required=True)
    _add_target(way)
    way.add_argument(
        "--direct", action="store_true", help="ask the worker itself at WORKER, which is host:port: no key"
    )
    drain.add_argument(
        "--deadline",
        type=real(0.0, MOST_SECONDS),
        metavar="SECONDS",
        help="that what runs there may go on, from 0 to 86400 (the worker's --drain-seconds)",
    )


def _add_target(parser: Any, **options: bool) -> None:
    text = "where a router listens for operators (--admin-grpc-listen)"
    parser.add_argument("--target", type=target, metavar="HOST:PORT", help=text, **options)


def _add(actions: Any, name: str, run: Any, text: str, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=about)
    add_api_key(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run, takes_rest=False)
    return parser


@contextmanager
def _client(arguments: argparse.Namespace) -> Iterator["OperatorClient"]:
    from octavo.client.workers import OperatorClient

    with OperatorClient(arguments.target, api_key=arguments.api_key) as client, reaching(arguments.target, OPERATORS):
        yield client


def _list(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        workers = client.workers()
    if arguments.json:
        print(json.dumps([asdict(worker) for worker in workers], indent=1))
        return 0
    rows = [
        (
            worker.target,
            worker.state,
            worker.worker_id,
            worker.model,
            str(worker.running),
            str(worker.waiting),
            f"{worker.free_blocks}/{worker.total_blocks}",
            worker.version,
        )
        for worker in workers
    ]
    print(columns(HEAD, rows))
    return 0


def _address(text: str) -> str:
    try:
        return target(text)
    except argparse.ArgumentTypeError as error:
        raise InvalidRequest(str(error)) from error


def _drained(arguments: argparse.Namespace) -> "Drained":
    from octavo.client.workers import drain_directly

    if arguments.direct:
        address = _address(arguments.worker)
        with reaching(address, WORKER):
            return drain_directly(address, arguments.deadline)
    with _client(arguments) as client:
        return client.drain(arguments.worker, arguments.deadline)


def _drain(arguments: argparse.Namespace) -> int:
    drained = _drained(arguments)
    if arguments.json:
        print(json.dumps(asdict(drained)))
    else:
        rest = f", {drained.unfinished} choices had not ended" if drained.unfinished else ""
        print(f"{arguments.worker} ({drained.worker_id}) has drained{rest}", file=sys.stderr)
    return 0
