"""`octavo tenant`: import tenants from YAML, look at them, delete them."""

import argparse
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.columns import columns
from octavo.cli.stored import actor, add_store, on_store
from shared.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from router.tenancy.records import TenantRecord
    from router.tenancy.store import Snapshot


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "tenant",
        help="tenants: their weights, limits and what they see",
        description="Work on the tenants of a store. Routers follow within a second.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_apply(actions)
    _add(actions, "list", _list, "all tenants").add_argument("--json", action="store_true", help="as JSON, whole")
    _add(actions, "show", _show, "one tenant, as a document for apply").add_argument("name", metavar="TENANT")
    gone = _add(actions, "delete", _delete, "delete a tenant, its keys and adapters; its usage stays")
    gone.add_argument("name", metavar="TENANT")


def _add(actions: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    add_store(parser)
    parser.set_defaults(run=run, takes_rest=False)
    return parser


def _add_apply(actions: Any) -> None:
    text = "make or replace the tenants of a YAML document, all or none; others stay as they are"
    _add(actions, "apply", _apply, text).add_argument(
        "-f", "--file", required=True, help="the document; - reads standard input"
    )


def text_of(name: str) -> str:
    """A file's text, or what comes on standard input for `-`, as UTF-8 whatever the locale. Raises InvalidRequest where it is none."""
    if name == "-" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # some locales make surrogates of what is not UTF-8
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8 text") from error


def _apply(arguments: argparse.Namespace) -> int:
    from router.tenancy.document import tenants_from_yaml

    tenants = tenants_from_yaml(text_of(arguments.file))
    on_store(arguments.store, lambda store: store.put_tenants(tenants, actor=actor()), make=True)
    for tenant in tenants:
        print(tenant.name)
    return 0


def _snapshot(arguments: argparse.Namespace) -> "Snapshot":
    return on_store(arguments.store, lambda store: store.snapshot())


def _limits(tenant: "TenantRecord") -> str:
    from router.tenancy.document import document_of

    return " ".join(f"{name}={limit}" for name, limit in document_of(tenant).get("limits", {}).items()) or "none"


def _list(arguments: argparse.Namespace) -> int:
    from router.tenancy.document import document_of

    snapshot = _snapshot(arguments)
    if arguments.json:
        print(json.dumps([document_of(tenant) for tenant in snapshot.tenants], indent=1))
        return 0
    keys = Counter(key.tenant for key in snapshot.keys)
    rows = [(t.name, f"{t.weight:g}", str(t.top_class), str(keys[t.name]), _limits(t)) for t in snapshot.tenants]
    print(columns(("TENANT", "WEIGHT", "CLASS", "KEYS", "LIMITS"), rows))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    import yaml

    from router.tenancy.document import document_of

    found = next((tenant for tenant in _snapshot(arguments).tenants if tenant.name == arguments.name), None)
    if found is None:
        raise NotFound(f"no tenant {arguments.name!r}")
    sys.stdout.write(yaml.safe_dump({"tenants": [document_of(found)]}, sort_keys=False, allow_unicode=True))
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    on_store(arguments.store, lambda store: store.delete_tenant(arguments.name, actor=actor()))
    return 0
