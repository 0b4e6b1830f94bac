"""`octavo demo`: things to try Octavo with."""

import argparse
import sys
from pathlib import Path
from typing import Any

from octavo.cli.arguments import whole


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser("demo", help="make adapters to try", description="Make things to try Octavo with.")
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    _add_adapters(kinds)


def _add_adapters(kinds: Any) -> None:
    parser = kinds.add_parser(
        "adapters",
        help="random LoRA adapters",
        description="Random LoRA adapters of all projections of a model's layers, each a PEFT directory under DIR: for "
        "`octavo serve --adapter-dir DIR`. Their weights are drawn, not trained: what the model says with them makes no sense.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where they go, as DIR/adapter-001 and so on")
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument("--count", type=whole(1, 999), default=8, help="of them (%(default)s)")
    parser.add_argument("--rank", type=whole(1, 1024), default=8, help="of each (%(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the first; each has its own (%(default)s)")
    parser.set_defaults(run=run_adapters, takes_rest=False)


def run_adapters(arguments: argparse.Namespace) -> int:
    """Progress goes to stderr, the directory to stdout."""
    from octavo.cli.pull import fetched
    from shared.errors import InvalidRequest
    from worker.models.errors import ModelError
    from worker.sources.errors import SourceError

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    path = fetched(arguments.model, progress)
    from octavo import demo_adapters
    from worker.sources.open import open_checkpoint

    try:
        base = demo_adapters.base_of(open_checkpoint(str(path)).checkpoint)
    except (SourceError, ModelError) as error:
        raise InvalidRequest(str(error), param="model") from error
    demo_adapters.write_many(
        arguments.directory, base, count=arguments.count, rank=arguments.rank, seed=arguments.seed, progress=progress
    )
    print(arguments.directory)
    return 0
