"""The `octavo` command. Nothing heavy is imported before the command that needs it runs."""

import argparse
import sys
from collections.abc import Sequence

from octavo.cli import adapters, audit, bench, chat, demo, key, prefix, pull, serve, tenant, usage, version, worker
from shared.errors import OctavoError

COMMANDS = (serve, pull, chat, adapters, demo, tenant, key, prefix, usage, audit, worker, bench, version)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Serve large language models: `octavo serve demo`, then ask http://127.0.0.1:8000/v1.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those behind a lone `--`."""
    if "--" not in argv:
        return list(argv), []
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def _of_system(error: OSError) -> str:
    """What the system refused, with the file's name where there is one."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 where something failed (told in one line), 2 for wrong arguments, 130 after Ctrl-C."""
    own, rest = split(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    arguments = parser.parse_args(own, argparse.Namespace(rest=rest))
    if rest and not arguments.takes_rest:
        parser.error("only `octavo serve` takes arguments behind --")
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except OctavoError as error:
        sys.stderr.write(f"octavo: {error.message}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"octavo: {_of_system(error)}\n")
        return 1
    except ModuleNotFoundError as error:
        sys.stderr.write(f"octavo: {error.name} is not installed; pip install 'octavo[router,worker,bench]' has it\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
