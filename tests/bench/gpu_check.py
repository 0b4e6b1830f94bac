"""Checks the GPU backend on the GPU that is there, then measures it: `python tests/bench/gpu_check.py [--dry] [--parts A,B] [--out DIR]`.

Parts run in order of importance. Each is kept as it ends, in gpu_check.json and gpu_check.md of --out ($OUT, or build/gpu_check): a further
run takes up the rest, there or with --resume FILE, so that a short lease does the most important first. A part that fails is told, and the
next one runs; none begins after --limit seconds. `--dry` runs every part at toy sizes on a CPU, in Triton's interpreter: its figures mean
nothing. Reads nothing outside the repository, and needs torch, triton, safetensors, transformers and numpy.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # in place of this folder, whose names are nobody's to import

if TYPE_CHECKING:
    from tests.bench.gpu.bed import Bed, Row
    from tests.bench.gpu.record import Record

NAMES = ("kernels", "equality", "decode", "end_to_end", "prefill", "rows", "sampler", "lora", "torch_compile")


def main() -> int:
    """Exit status: 1 where a check does not hold or a part failed, 3 where parts are left for a further run."""
    options = _options()
    _prepare(dry=options.dry)
    import torch

    from kernels.errors import NoBackend
    from tests.bench.gpu.bed import Bed
    from tests.bench.gpu.record import NAME, Record, facts

    began = time.perf_counter()
    try:
        options.out.mkdir(parents=True, exist_ok=True)  # what cannot be kept shows before anything runs
        bed = Bed.present(dry=options.dry)
    except (OSError, NoBackend) as error:
        sys.exit(f"gpu_check: {error}")
    record = Record(facts=facts(bed))
    earlier = options.resume or options.out / f"{NAME}.json"
    if options.resume or earlier.exists():
        _say(record.take_over(earlier))
    left = [name for name in options.parts if name not in record.parts]
    while left and time.perf_counter() - began < options.limit:
        name = left.pop(0)
        with torch.inference_mode():
            _run(name, _parts()[name], bed, record)
        record.write(options.out)
        bed.forget()
    record.write(options.out)
    return _told(record, left, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="toy sizes in the interpreter")
    parser.add_argument("--parts", type=_names, default=NAMES, help=f"of {','.join(NAMES)}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "gpu_check")))
    parser.add_argument("--resume", type=Path, metavar="FILE", help="gpu_check.json of an earlier run")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which no part begins (%(default)s)")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if strange := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"no part {', '.join(strange)}; there are: {', '.join(NAMES)}")
    return names


def _prepare(*, dry: bool) -> None:
    """Before anything imports Triton or transformers."""
    import kernels

    # transformers looks for another distribution of this name, and takes one without a version for a fault.
    vars(kernels).setdefault("__version__", "0")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not dry:
        os.environ.pop("TRITON_INTERPRET", None)
        return
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.kernels import triton_by_value

    triton_by_value.install()


def _parts() -> "dict[str, Callable[[Bed], Iterable[Row]]]":
    from tests.bench.gpu import attention, bandwidth, check_attention, check_layers, check_sampler, end_to_end, equality

    def kernels(bed: "Bed") -> "Iterable[Row]":
        return chain(check_attention.check(bed), check_layers.check(bed), check_sampler.check(bed))

    runs = (
        kernels, equality.check, attention.decode, end_to_end.end_to_end, attention.prefill, bandwidth.rows,
        bandwidth.sampler, bandwidth.lora, end_to_end.torch_compile,
    )  # fmt: skip
    return dict(zip(NAMES, runs, strict=True))


def _run(name: str, part: "Callable[[Bed], Iterable[Row]]", bed: "Bed", record: "Record") -> None:
    """What is wrong with one part must not take the lease from the others."""
    from tests.bench.gpu.record import table

    start, rows, error = time.perf_counter(), [], None
    try:
        for row in part(bed):
            rows.append(row)  # noqa: PERF402 - what came before a failure is kept
    except Exception:  # noqa: BLE001
        error = traceback.format_exc()
    record.rates |= bed.rates()
    record.parts[name] = {"seconds": time.perf_counter() - start, "rows": rows, "error": error}
    _say(f"\n{name}: {time.perf_counter() - start:.1f} s{'' if error is None else ', failed'}")
    _say("\n".join([*table(rows), *([error] if error else [])]))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _told(record: "Record", left: list[str], out: Path) -> int:
    for row in record.wrong():
        _say(f"does not hold: {row}")
    for name in record.failed():
        _say(f"failed: {name}")
    _say(f"{len(record.parts)} parts in {out}" + (f"; left for a further run: {', '.join(left)}" if left else ""))
    return 1 if record.wrong() or record.failed() else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
