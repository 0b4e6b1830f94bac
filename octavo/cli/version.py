"""`octavo version`."""

import argparse
import platform
from typing import Any

from shared.config import version


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser("version", help="the versions of octavo and Python", description=__doc__)
    parser.set_defaults(run=run, takes_rest=False)


def run(_arguments: argparse.Namespace) -> int:
    """Prints one line."""
    print(f"octavo {version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    return 0
