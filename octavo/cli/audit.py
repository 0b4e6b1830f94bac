"""`octavo audit`: the audit log, as CSV or JSON."""

import argparse
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from octavo.cli.moments import FORMS, past
from octavo.cli.stored import add_store, on_store
from octavo.cli.usage import FOREVER

if TYPE_CHECKING:
    from router.tenancy.store import AuditLine, AuditQuery, Store


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "audit",
        help="who changed tenants, keys and adapters",
        description="Lines of the audit log, oldest first: time (Unix seconds), who (tenant/key, or local:user for commands on this host), "
        "from which address, what, on what, and what was kept before and after. No key stands there.",
    )
    add_store(parser)
    parser.add_argument("--since", type=past(), default=0.0, metavar="TIME", help=f"from then on: {FORMS}")
    parser.add_argument("--until", type=past(), default=FOREVER, metavar="TIME", help="before then")
    parser.add_argument("--actor", default="", help="by this one alone: acme/main, local:root")
    parser.add_argument("--action", default="", help="of this action alone: key.add; key means every key.*")
    parser.add_argument("--subject", default="", help="on this alone: acme/main; acme means its keys and adapters too")
    parser.add_argument("--format", choices=("csv", "json"), default="csv", help="(%(default)s)")
    parser.set_defaults(run=run, takes_rest=False)


async def _pages(store: "Store", query: "AuditQuery") -> AsyncIterator["list[AuditLine]"]:
    """As many lines at once as the query's limit. The first page may be empty."""
    while True:
        page = list(await store.audit_lines(query))
        yield page
        if len(page) < query.limit:
            return
        query = replace(query, after=page[-1].number)


async def _write(store: "Store", query: "AuditQuery", form: str, out: TextIO) -> None:
    from router.tenancy import export

    if form == "json":
        out.write(export.audit([line async for page in _pages(store, query) for line in page], "json"))
        return
    headed = False
    async for page in _pages(store, query):
        text = export.audit(page, "csv")
        out.write(text.partition("\n")[2] if headed else text)
        headed = True


def run(arguments: argparse.Namespace) -> int:
    """To stdout."""
    from router.tenancy.store import AuditQuery

    query = AuditQuery(
        since=arguments.since,
        until=arguments.until,
        actor=arguments.actor,
        action=arguments.action,
        subject=arguments.subject,
    )
    on_store(arguments.store, lambda store: _write(store, query, arguments.format, sys.stdout))
    return 0
