"""`octavo bench tenancy`: what tenancy costs a request."""

import argparse
import asyncio
from typing import Any

from octavo.cli.bench.options import add_json, positive, progress, write


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "tenancy",
        help="processor time of keys, limits and ledger",
        description="Processor time and waits that keys, limits and the ledger add to a request, over a store in a temporary folder.",
    )
    parser.add_argument("--requests", type=positive, default=5_000, help="in all (%(default)s)")
    parser.add_argument("--concurrency", type=positive, default=8, help="of them at once (%(default)s)")
    parser.add_argument("--tenants", type=positive, default=100, help="in turn (%(default)s)")
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def run(arguments: argparse.Namespace) -> int:
    """The report of one run."""
    from octavo.bench import tenancy

    shape = tenancy.Shape(requests=arguments.requests, concurrency=arguments.concurrency, tenants=arguments.tenants)
    write(asyncio.run(tenancy.measure(shape, progress)), arguments.json)
    return 0
