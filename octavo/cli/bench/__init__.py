"""`octavo bench`: figures of servers, of the engine alone, of its kernels, of adapters, of the peers, placement, the router."""

from typing import Any

from octavo.cli.bench import (
    adapters,
    bitwise,
    engine,
    hf,
    intrusion,
    kernels,
    peers,
    placement,
    router,
    serving,
    sweep,
    tenancy,
)


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "bench", help="measure throughput and latency", description="Measure throughput and latency, as JSON."
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for kind in (serving, intrusion, engine, kernels, sweep, bitwise, adapters, peers, hf, tenancy, placement, router):
        kind.add(kinds)
