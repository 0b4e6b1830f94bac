"""Writes the committed gRPC stubs, or checks that they are what protos/*.proto gives: `python -m tools.stubs write|check`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "protos"
PATTERN = "*_pb2*.py*"
PLUGINS = ("--python_out={out}", "--mypy_out=quiet:{out}", "--grpc_python_out={out}", "--mypy_grpc_out=quiet:{out}")


def generate(root: Path, out: Path) -> None:
    """Stubs of every proto in `root`/protos, written under `out`/protos. Raises CalledProcessError with protoc's words on stderr."""
    protos = sorted(f"{PACKAGE}/{path.name}" for path in (root / PACKAGE).glob("*.proto"))
    flags = [plugin.format(out=out.resolve()) for plugin in PLUGINS]
    # protoc finds mypy-protobuf's plugins on PATH: those beside this interpreter.
    plugins = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{plugins}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *flags, *protos]
    subprocess.run(command, cwd=root, env=environ, check=True)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(PATTERN)}


def differences(root: Path) -> list[str]:
    """One line for each stub in `root`/protos that is missing, stale or left over; none when all are fresh."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(root, Path(scratch))
        fresh = _contents(Path(scratch) / PACKAGE)
    committed = _contents(root / PACKAGE)
    missing = [f"{PACKAGE}/{name}: missing" for name in fresh if name not in committed]
    stale = [f"{PACKAGE}/{name}: stale" for name in fresh if name in committed and committed[name] != fresh[name]]
    extra = [f"{PACKAGE}/{name}: has no .proto" for name in committed if name not in fresh]
    return sorted(missing + stale + extra)


def write(root: Path) -> None:
    """Replace the stubs in `root`/protos; those of protos that are gone go too."""
    for path in (root / PACKAGE).glob(PATTERN):
        path.unlink()
    generate(root, root)


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 when written or fresh, 1 when some are not, 2 on wrong usage."""
    root = Path.cwd()
    match list(argv):
        case ["write"]:
            write(root)
            return 0
        case ["check"]:
            found = differences(root)
            for line in found:
                print(line)
            print(f"{len(found)} stubs differ: run `make proto` and commit them" if found else "stubs are fresh")
            return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
