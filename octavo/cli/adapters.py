"""`octavo adapters`: LoRA adapters of a running router, listed, loaded, pinned and unloaded, over gRPC."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import add_api_key, target
from octavo.cli.columns import columns
from octavo.cli.moments import shown
from octavo.cli.reach import reaching

if TYPE_CHECKING:
    from octavo.client.adapters import Adapter, AdapterClient, AtWorker

HEAD = ("NAME", "MODEL", "WORKER", "LEVEL", "VERSION", "RANK", "BYTES", "PINNED", "LOADED", "ERROR")
DIGITS = 12  # of a version that are shown

_ABOUT = """Work on the LoRA adapters of a running router. Each change is made at every worker of the model, or at none, and workers
that come later are told of it. With tenants, a key needs the scope adapters (for the tenant's own names) or admin."""


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser("adapters", help="LoRA adapters of a running router", description=_ABOUT)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add(actions, "list", _list, "every adapter at every worker: absent, source (known by name), host (memory), device")
    load = _add(actions, "load", _load, "load an adapter at every worker")
    _name(load)
    load.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        default="",
        help="a path, an address that fsspec knows or a Hub id, as the workers see it: the path absolute, or in "
        "the adapter directory (its name there)",
    )
    load.add_argument("--replace", action="store_true", help="replace the version that the name means now")
    load.add_argument("--pin", action="store_true", help="keep it in memory; needs the scope admin")
    _name(_add(actions, "unload", _unload, "unload an adapter from every worker; requests that run end on it"))
    _name(_add(actions, "pin", _pin, "keep an adapter in every worker's memory; needs the scope admin"))
    _name(_add(actions, "unpin", _unpin, "let an adapter make room again; needs the scope admin"))


def _add(actions: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--target", type=target, default="127.0.0.1:50051", help="the router's gRPC address (%(default)s)"
    )
    add_api_key(parser)
    parser.add_argument("--model", default="", help="the base's name; may be left out where one model is served")
    parser.add_argument("--json", action="store_true", help="as JSON; times are Unix seconds")
    parser.set_defaults(run=run, takes_rest=False)
    return parser


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="`name`, for all, or `tenant/name`")


@contextmanager
def _client(arguments: argparse.Namespace) -> Iterator["AdapterClient"]:
    from octavo.client.adapters import AdapterClient

    with AdapterClient(arguments.target, api_key=arguments.api_key) as client, reaching(arguments.target):
        yield client


def _row(adapter: "Adapter", at: "AtWorker") -> tuple[str, ...]:
    there = at.level != "absent"
    return (
        adapter.name,
        adapter.model,
        at.worker,
        at.level,
        at.digest[:DIGITS],
        str(adapter.rank) if at.digest and at.digest == adapter.digest else "",
        str(at.bytes) if there else "",
        "yes" if at.pinned else "",
        shown(at.loaded) if at.loaded else "",
        at.error,
    )


def _rows(adapters: Sequence["Adapter"]) -> Iterator[tuple[str, ...]]:
    for adapter in adapters:
        if not adapter.workers:
            yield (adapter.name, adapter.model, "", "absent", adapter.digest[:DIGITS], *[""] * 5)
        yield from (_row(adapter, at) for at in adapter.workers)


def _tell(arguments: argparse.Namespace, adapters: Sequence["Adapter"], *, one: bool = False) -> int:
    if arguments.json:
        told = [asdict(adapter) for adapter in adapters]
        print(json.dumps(told[0] if one else told, indent=1))
    else:
        print(columns(HEAD, list(_rows(adapters))))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        return _tell(arguments, client.list(arguments.model))


def _load(arguments: argparse.Namespace) -> int:
    options = {"model": arguments.model, "replace": arguments.replace, "pin": arguments.pin}
    with _client(arguments) as client:
        return _tell(arguments, [client.load(arguments.name, arguments.source, **options)], one=True)


def _unload(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        name = client.unload(arguments.name, model=arguments.model)
    if arguments.json:
        print(json.dumps({"name": name, "unloaded": True}))
    else:
        print(f"{name} is unloaded", file=sys.stderr)
    return 0


def _pin(arguments: argparse.Namespace, *, pinned: bool = True) -> int:
    with _client(arguments) as client:
        return _tell(arguments, [client.pin(arguments.name, pinned, model=arguments.model)], one=True)


def _unpin(arguments: argparse.Namespace) -> int:
    return _pin(arguments, pinned=False)
