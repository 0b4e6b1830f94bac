"""Compiles every GPU launch without a GPU, through the launch code that serves: `python -m tools.gpu_compile [ARCH ...]`.

Prints a line a compiled kernel: registers, spills, shared memory. Fails where one spills, or takes more shared memory than
a block of its architecture may have. `--quick` compiles for one model, `--match TEXT` cases whose name has it, `--tiles
FILE` takes another table of tiles, `--json FILE` keeps the figures.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from kernels.gpu.arch import SHARED_LIMIT
from kernels.gpu.tiles import DEFAULT


def main() -> int:
    """Exit status: 1 where a kernel does not fit."""
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported: it decides then
    from tools.gpu_launches import Report, compiled

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arch", nargs="*", help=f"any of {', '.join(SHARED_LIMIT)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one head size and dtype")
    parser.add_argument("--match", default="", metavar="TEXT")
    parser.add_argument("--tiles", type=Path, default=DEFAULT)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Report] = []
    for arch in options.arch or SHARED_LIMIT:
        for report in compiled(arch, options.tiles, quick=options.quick, match=options.match):
            print(report.line(), flush=True)
            found.append(report)
    bad = [report for report in found if report.faults()]
    if options.json:
        options.json.write_text(json.dumps([asdict(report) for report in found], indent=1), encoding="utf-8")
    print(f"{len(found)} kernels compiled, {len(bad)} do not fit")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
