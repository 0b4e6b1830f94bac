"""`octavo prefix`: public prefixes, whose cached blocks all tenants share."""

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from octavo.cli.columns import columns
from octavo.cli.moments import shown
from octavo.cli.stored import actor, add_store, on_store
from octavo.cli.tenant import text_of

if TYPE_CHECKING:
    from router.tenancy.records import PrefixRecord


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "prefix",
        help="public prefixes, which all tenants share in the cache",
        description="Work on the public prefixes of a store. Prompts that begin with all of one share what is cached of it, and nothing "
        "after it, whosever they are. Routers follow within a second.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_put(actions)
    _add(actions, "list", _list, "all public prefixes").add_argument(
        "--json", action="store_true", help="as JSON, whole"
    )
    gone = _add(actions, "delete", _delete, "no prompt shares it any more")
    gone.add_argument("name", metavar="NAME")


def _add(actions: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    add_store(parser)
    parser.set_defaults(run=run, takes_rest=False)
    return parser


def _add_put(actions: Any) -> None:
    parser = _add(actions, "put", _put, "register a public prefix, or replace it")
    parser.add_argument("name", metavar="NAME")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--system", metavar="FILE", help="a chat's system message, exactly; - reads standard input")
    given.add_argument("--text", metavar="FILE", help="how a prompt's text begins; - reads standard input")
    parser.add_argument(
        "--model",
        nargs="+",
        action="extend",
        default=None,  # to which what is given would be added
        metavar="MODEL",
        help="served names, one or more, in which * and ? match any (all)",
    )


def _put(arguments: argparse.Namespace) -> int:
    """A file's last newline is an editor's, not the message's; of a text it may be meant, and stays."""
    from router.tenancy.records import PrefixRecord

    prefix = PrefixRecord(
        name=arguments.name,
        text=text_of(arguments.text) if arguments.text else "",
        system=text_of(arguments.system).removesuffix("\n") if arguments.system else "",
        models=tuple(arguments.model or ("*",)),
        created=time.time(),
    )
    on_store(arguments.store, lambda store: store.put_prefix(prefix, actor=actor()), make=True)
    return 0


def _plain(prefix: "PrefixRecord") -> dict[str, Any]:
    kind = "system" if prefix.system else "text"
    told = {"name": prefix.name, kind: prefix.system or prefix.text}
    return {**told, "models": list(prefix.models), "created": prefix.created}


def _row(prefix: "PrefixRecord") -> tuple[str, ...]:
    kind, text = ("system", prefix.system) if prefix.system else ("text", prefix.text)
    return (prefix.name, kind, str(len(text)), ",".join(prefix.models), shown(prefix.created))


def _list(arguments: argparse.Namespace) -> int:
    snapshot = on_store(arguments.store, lambda store: store.snapshot())
    if arguments.json:
        print(json.dumps(list(map(_plain, snapshot.prefixes)), indent=1))
    else:
        print(columns(("NAME", "KIND", "CHARACTERS", "MODELS", "CREATED"), list(map(_row, snapshot.prefixes))))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    on_store(arguments.store, lambda store: store.delete_prefix(arguments.name, actor=actor()))
    return 0
