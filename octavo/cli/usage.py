"""`octavo usage`: the ledger's sums or lines, as CSV or JSON."""

import argparse
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from octavo.cli.moments import FORMS, past
from octavo.cli.stored import add_store, on_store

if TYPE_CHECKING:
    from router.tenancy.store import Store, UsageLine, UsageQuery

FOREVER = 2.0**53  # Unix seconds


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "usage",
        help="what tenants used",
        description="Sums of the ledger by tenant, key, model and adapter, or its lines. A request counts at the time of its end.",
    )
    add_store(parser)
    parser.add_argument("--since", type=past(), default=0.0, metavar="TIME", help=f"from then on: {FORMS}")
    parser.add_argument("--until", type=past(), default=FOREVER, metavar="TIME", help="before then")
    for name in ("tenant", "key", "model"):
        parser.add_argument(f"--{name}", default="", help=f"of this {name} alone")
    parser.add_argument("--lines", action="store_true", help="a line for each request; times are Unix seconds")
    parser.add_argument("--format", choices=("csv", "json"), default="csv", help="(%(default)s)")
    parser.set_defaults(run=run, takes_rest=False)


async def _pages(store: "Store", query: "UsageQuery") -> AsyncIterator["list[UsageLine]"]:
    """The ledger's lines, as many at once as the query's limit. The first page may be empty."""
    while True:
        page = list(await store.usage(query))
        yield page
        if len(page) < query.limit:
            return
        query = replace(query, after=page[-1].number)


async def _write_csv(store: "Store", query: "UsageQuery", out: TextIO) -> None:
    """Page by page: a ledger may be larger than memory."""
    from router.tenancy import export

    headed = False
    async for page in _pages(store, query):
        text = export.lines(page, "csv")
        out.write(text.partition("\n")[2] if headed else text)
        headed = True


async def _write(store: "Store", query: "UsageQuery", arguments: argparse.Namespace, out: TextIO) -> None:
    from router.tenancy import export

    if not arguments.lines:
        out.write(export.totals(await store.totals(query), arguments.format))
    elif arguments.format == "csv":
        await _write_csv(store, query, out)
    else:
        out.write(export.lines([line async for page in _pages(store, query) for line in page], "json"))


def run(arguments: argparse.Namespace) -> int:
    """To stdout."""
    from router.tenancy.store import UsageQuery

    query = UsageQuery(
        since=arguments.since,
        until=arguments.until,
        tenant=arguments.tenant,
        key=arguments.key,
        model=arguments.model,
    )
    on_store(arguments.store, lambda store: _write(store, query, arguments, sys.stdout))
    return 0
