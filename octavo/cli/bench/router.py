"""`octavo bench router`: what the router itself costs."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from octavo.cli.bench.options import add_json, positive, progress, write

PARTS = ("decision", "memory", "events", "tokens", "session", "generate", "ttft", "streams", "profile")


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "router",
        help="the router's own cost, with workers that only pretend",
        description="A router alone on core 0, simulated workers and a reader of raw sockets on core 1: events and tokens a second, what "
        "is added to the first token, memory, processor time by part; and, without sockets, decisions, hashing and the index's memory. "
        "Linux only; every part takes less than four minutes.",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"({' '.join(PARTS)})")
    parser.add_argument("--streams", type=positive, default=64, help="at once, of events, tokens, gRPC (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=10, help="of each measurement (%(default)s)")
    parser.add_argument("--workers", type=positive, default=4, help="simulated (%(default)s)")
    parser.add_argument("--rate", type=positive, help="tokens a second of ttft (half of what the part tokens finds)")
    parser.add_argument(
        "--many", type=positive, default=2_000, help="streams at once of the part streams (%(default)s)"
    )
    parser.add_argument(
        "--prompts", type=positive, default=1_000_000, help="unique ones of the part memory (%(default)s)"
    )
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def run(arguments: argparse.Namespace) -> int:
    """The report of all parts."""
    from octavo.bench import machine
    from octavo.bench.router import parts

    settings = parts.Settings(
        streams=arguments.streams,
        seconds=arguments.seconds,
        workers=arguments.workers,
        rate=arguments.rate,
        many=arguments.many,
        prompts=arguments.prompts,
    )
    measured: dict[str, Any] = {}
    shown: Mapping[str, Callable[[parts.Settings, Mapping[str, Any]], Any]] = parts.PARTS
    for name in arguments.parts:
        measured[name] = shown[name](settings, measured)
        for line in parts.told(name, measured[name]):
            progress(line)
    about = {"commit": machine.commit(), "machine": machine.machine(), "versions": machine.versions()}
    write({**about, "parts": measured}, arguments.json)
    return 0
