"""One of a router's processes, as its supervisor starts it: python -m router.processes.member NUMBER DIRECTORY FLAGS..."""

import sys
from pathlib import Path

from router.main import run
from router.processes.siblings import Member


def main() -> int:
    """The process's exit status."""
    number, directory, *flags = sys.argv[1:]
    return run(flags, Member(number=int(number), directory=Path(directory)))


if __name__ == "__main__":
    sys.exit(main())
