"""`octavo key`: make API keys (shown once), list them, revoke them."""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from octavo.cli.columns import columns
from octavo.cli.moments import FORMS, future, shown
from octavo.cli.stored import actor, add_store, on_store
from shared.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from router.tenancy.records import KeyRecord

SCOPES = ("infer", "adapters", "admin")


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "key", help="API keys of tenants", description="Work on the keys of a store. Routers follow within a second."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_create(actions)
    listed = _add(actions, "list", _list, "keys, without their secrets, which nobody has")
    listed.add_argument("tenant", metavar="TENANT", nargs="?", help="of this tenant alone")
    listed.add_argument("--json", action="store_true", help="as JSON; times are Unix seconds")
    gone = _add(actions, "revoke", _revoke, "no request with this key begins any more")
    gone.add_argument("tenant", metavar="TENANT")
    gone.add_argument("name", metavar="NAME", help="the key's name, not the key")


def _add(actions: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    add_store(parser)
    parser.set_defaults(run=run, takes_rest=False)
    return parser


def _add_create(actions: Any) -> None:
    parser = _add(actions, "create", _create, "make a key and print it, this once")
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("name", metavar="NAME", help="stands in the ledger and in logs")
    parser.add_argument(
        "--scope",
        choices=SCOPES,
        nargs="+",
        action="extend",
        default=None,  # to which what is given would be added
        help="what it may be used for, one or more (infer alone)",
    )
    parser.add_argument("--expires", type=future(), metavar="TIME", help=f"{FORMS} (never)")


def _create(arguments: argparse.Namespace) -> int:
    """The key alone goes to stdout, once the store has it."""
    from router.tenancy.keys import new_key
    from router.tenancy.records import Scope

    now, scopes = time.time(), frozenset(map(Scope, arguments.scope or ("infer",)))
    if arguments.expires is not None and arguments.expires <= now:
        raise InvalidRequest(f"the key would have expired at {shown(arguments.expires)}", param="expires")
    key = new_key(tenant=arguments.tenant, name=arguments.name, scopes=scopes, now=now, expires=arguments.expires)
    on_store(arguments.store, lambda store: store.add_key(key.record, actor=actor()))
    print(key.text)
    print("This key is not shown again.", file=sys.stderr)
    return 0


def _scopes(key: "KeyRecord") -> list[str]:
    return sorted(scope.value for scope in key.scopes)


def _plain(key: "KeyRecord") -> dict[str, Any]:
    told = {"tenant": key.tenant, "name": key.name, "prefix": key.prefix, "scopes": _scopes(key)}
    return {**told, "created": key.created, "expires": key.expires}


def _row(key: "KeyRecord") -> tuple[str, ...]:
    return (key.tenant, key.name, key.prefix, ",".join(_scopes(key)), shown(key.created), shown(key.expires))


def _list(arguments: argparse.Namespace) -> int:
    snapshot = on_store(arguments.store, lambda store: store.snapshot())
    if arguments.tenant is not None and all(tenant.name != arguments.tenant for tenant in snapshot.tenants):
        raise NotFound(f"no tenant {arguments.tenant!r}")
    keys = [key for key in snapshot.keys if arguments.tenant in (None, key.tenant)]
    if arguments.json:
        print(json.dumps(list(map(_plain, keys)), indent=1))
    else:
        print(columns(("TENANT", "NAME", "PREFIX", "SCOPES", "CREATED", "EXPIRES"), list(map(_row, keys))))
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    from router.tenancy.records import check_name

    check_name(arguments.name, "NAME")  # who gives the key itself does not read it again in the error
    on_store(arguments.store, lambda store: store.revoke_key(arguments.tenant, arguments.name, actor=actor()))
    return 0
