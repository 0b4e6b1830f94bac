"""Prints files and functions that are too long, and fails if there are any: `python -m tools.size_budget`.

A file, C++ too, may have 400 lines and a function 60, or 150 in kernels and model tables, where one formula is one function. Generated
stubs are exempt. Lines are counted as they stand, with docstrings, comments and a function's decorators.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("protos", "shared", "router", "worker", "kernels", "octavo", "tools", "tests")
FILE_LINES = 400
FUNCTION_LINES = 60
TABLE_FUNCTION_LINES = 150
SUFFIXES = (".py", ".cpp", ".h")
TABLES = ("kernels/", "worker/models/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> Iterator[Path]:
    """Hand-written Python and C++ below `root`, in a stable order."""
    for name in ROOTS:
        found = (path for path in (root / name).rglob("*") if path.suffix in SUFFIXES and "_pb2" not in path.name)
        yield from sorted(found)


def _length(function: Function) -> int:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return (function.end_lineno or first) - first + 1


def long_functions(tree: ast.AST, limit: int) -> Iterator[tuple[Function, int]]:
    """Functions of more than `limit` lines, nested ones and methods too, each with its length."""
    for node in ast.walk(tree):
        if isinstance(node, Function) and _length(node) > limit:
            yield node, _length(node)


def offences(root: Path, path: Path) -> Iterator[str]:
    """One line for each budget that the file exceeds."""
    name, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines, {FILE_LINES} allowed"
    if path.suffix != ".py":
        return
    limit = TABLE_FUNCTION_LINES if name.startswith(TABLES) else FUNCTION_LINES
    for function, length in long_functions(ast.parse(text, name), limit):
        yield f"{name}:{function.lineno}: {function.name} has {length} lines, {limit} allowed"


def main() -> int:
    """Exit status: 1 when something is too long."""
    root = Path.cwd()
    paths = list(sources(root))
    found = [line for path in paths for line in offences(root, path)]
    for line in found:
        print(line)
    print(f"{len(found)} over the size budget" if found else f"{len(paths)} files are within the size budget")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
