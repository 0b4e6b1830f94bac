"""`octavo bench kernels`: each op of a backend."""

import argparse
import os
from pathlib import Path
from typing import Any

from octavo.cli.arguments import real, whole
from octavo.cli.bench.options import add_json, add_kernels, positive, progress, refused, write
from shared.errors import InvalidRequest

TRIES = 24
OPS = (
    "attention", "attn_in", "attn_out", "embed", "greedy", "layers", "logits", "mlp", "prepare", "sample",
)  # fmt: skip


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "kernels",
        help="each op of a kernel backend",
        description="Each op on a model's own weights, in turns with the reference, and beside the roofline: bytes over the read rate or "
        "FLOP over the rate of products, both measured in the same run.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument(
        "--ops", nargs="+", default=[], choices=OPS, metavar="OP", help=f"only these of {', '.join(OPS)}"
    )
    parser.add_argument("--decode", type=pair, nargs="+", default=[(1, 200), (8, 200), (32, 200), (64, 200), (1, 4000)],
                        metavar="BATCH:CONTEXT", help="decode steps (1:200 8:200 32:200 64:200 1:4000)")  # fmt: skip
    parser.add_argument("--prefill", type=pair, nargs="+", default=[(128, 0), (512, 0), (512, 1536)],
                        metavar="LENGTH:START", help="chunks of one prompt (128:0 512:0 512:1536)")  # fmt: skip
    parser.add_argument("--rounds", type=positive, default=5, help="of op and reference (%(default)s)")
    parser.add_argument("--seconds", type=real(0), default=0.05, help="of each in each round (%(default)s)")
    add_tuning(parser)
    add_kernels(parser)
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """What a GPU's tiles are tuned by."""
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on a GPU: time other tiles of the Triton kernels at the sizes of Llama 3 8B, and keep the fastest in the table",
    )
    parser.add_argument(
        "--kernels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="that --tune tunes: names in the table, or their beginnings",
    )
    parser.add_argument(
        "--tiles",
        type=Path,
        metavar="FILE",
        help="the table that --tune reads and writes (the one that launches read: OCTAVO_GPU_TILES, or the package's own)",
    )
    parser.add_argument(
        "--tries", type=positive, default=TRIES, help="tiles of an entry that --tune times at most (%(default)s)"
    )


def pair(text: str) -> tuple[int, int]:
    """argparse's type of two numbers, the second of which may be 0."""
    first, between, second = text.partition(":")
    if not between:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers such as 8:200")
    return positive(first), whole(0)(second)


def run(arguments: argparse.Namespace) -> int:
    """The table goes to stderr, the report to --json or stdout."""
    _check(arguments)
    if arguments.tune:
        return tune(arguments)
    from octavo.cli.pull import fetched
    from worker.config import WorkerConfig
    from worker.loading import set_threads

    settings = WorkerConfig(model="unknown", threads=arguments.threads or 0)
    threads = set_threads(settings, os.environ)  # before torch is imported
    path = fetched(arguments.model, progress)
    from octavo.bench.kernels.measure import markdown
    from octavo.bench.kernels.report import Asked, report

    asked = Asked(
        model=path,
        backend=arguments.backend or settings.backend,
        isa=arguments.cpu_isa or settings.cpu_isa,
        threads=threads,
        dtype=arguments.dtype,
        decodes=tuple(arguments.decode),
        prefills=tuple(arguments.prefill),
        ops=tuple(arguments.ops),
        rounds=arguments.rounds,
        seconds=arguments.seconds,
    )
    with refused():
        made = report(asked)
    progress(markdown(made["kernels"]))
    write(made, arguments.json)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises InvalidRequest for what would be left unread: --ops picks what is measured, --kernels what is tuned."""
    if arguments.tune and arguments.ops:
        raise InvalidRequest("--ops picks what is measured; --tune takes --kernels")
    tuning = {"--kernels": arguments.kernels, "--tiles": arguments.tiles, "--tries": arguments.tries != TRIES}
    given = [flag for flag, value in tuning.items() if value]
    if given and not arguments.tune:
        raise InvalidRequest(f"{given[0]} needs --tune; what is measured is picked by --ops")


def tune(arguments: argparse.Namespace) -> int:
    """A line an entry goes to stderr, the report to --json or stdout."""
    from octavo.bench.kernels.tune.report import Asked
    from octavo.bench.kernels.tune.report import tune as tuned

    asked = Asked(kernels=tuple(arguments.kernels), table=arguments.tiles, tries=arguments.tries)
    with refused():
        made = tuned(asked, progress)
    if not made["in_use"]:
        progress(f"launches take {made['table']} where OCTAVO_GPU_TILES names it")
    write(made, arguments.json)
    return 0
