"""`octavo bench hf`: transformers beside us."""

import argparse
from typing import Any

from octavo.cli.bench.options import add_workload, positive, progress, workload_of, write


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "hf",
        help="transformers' generate, one request at a time",
        description="The same requests by transformers' own generate, for comparison.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument("--requests", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--threads", type=positive, help="of torch (its own choice)")
    add_workload(parser)
    parser.set_defaults(run=run, takes_rest=False)


def run(arguments: argparse.Namespace) -> int:
    """The report of one run."""
    from octavo.bench import hf
    from octavo.cli.pull import fetched

    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    path = fetched(arguments.model, progress)
    write(hf.measure(path, workload_of(arguments), requests=arguments.requests, progress=progress), arguments.json)
    return 0
