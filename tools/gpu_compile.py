"""Compiles every GPU launch without a GPU, through the launch code that serves: `python -m tools.gpu_compile [ARCH ...]`.

Prints a line a compiled kernel: registers, spills, shared memory. Fails where one spills, or takes more shared memory than
a block of its architecture may have. Exit status: 1 where a kernel does not fit, 2 where there is nothing to compile.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from kernels.gpu.arch import SHARED_LIMIT
from kernels.gpu.tile_rules import BadTiles
from kernels.gpu.tiles import DEFAULT
from octavo.cli.arguments import output


def main() -> int:
    """See the module."""
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported: it decides then
    parser = _parser()
    options = parser.parse_args()
    try:
        return _check(options)
    except BadTiles as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arch", nargs="*", type=_arch, metavar="ARCH", help=f"any of {', '.join(SHARED_LIMIT)} (all)")
    parser.add_argument("--quick", action="store_true", help="one model: one head size and dtype")
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="only cases whose name has it, as in the third column (all)"
    )
    parser.add_argument(
        "--tiles", type=Path, default=DEFAULT, metavar="FILE", help="the table of tiles (the package's own)"
    )
    parser.add_argument("--json", type=output, metavar="OUT", help="where the figures go, too (nowhere)")
    return parser


def _arch(text: str) -> str:
    if text not in SHARED_LIMIT:
        raise argparse.ArgumentTypeError(f"no architecture {text!r}; there are: {', '.join(SHARED_LIMIT)}")
    return text


def _check(options: argparse.Namespace) -> int:
    """The exit status. Raises BadTiles where the table is none."""
    from tools.gpu_launches import Report, compiled

    found: list[Report] = []
    for arch in options.arch or SHARED_LIMIT:
        for report in compiled(arch, options.tiles, quick=options.quick, match=options.match):
            print(report.line(), flush=True)
            found.append(report)
    bad = [report for report in found if report.faults()]
    if options.json:
        options.json.write_text(json.dumps([asdict(report) for report in found], indent=1), encoding="utf-8")
    print(f"{len(found)} kernels compiled, {len(bad)} do not fit")
    if not found:
        print(f"no case's name has {options.match!r}", file=sys.stderr)
        return 2
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
