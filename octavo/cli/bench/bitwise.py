"""`octavo bench bitwise`: the cost of results that do not depend on the batch."""

import argparse
import os
from typing import Any

from octavo.cli.arguments import real
from octavo.cli.bench.options import add_json, add_kernels, positive, progress, refused, write


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "bitwise",
        help="what it costs that a row's bits do not depend on its batch",
        description="All products of a step, in turns with those of PyTorch's library (oneDNN), which chooses its order of sums by the "
        "number of rows. It tells the cost; that the bits are equal is shown by tests/e2e/test_bitwise.py.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument(
        "--rows", type=positive, nargs="+", default=[1, 8, 32, 64, 512], help="of a step (1 8 32 64 512)"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="of each side (%(default)s)")
    parser.add_argument("--seconds", type=real(0), default=0.2, help="of each in each round (%(default)s)")
    add_kernels(parser)
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def run(arguments: argparse.Namespace) -> int:
    """The table goes to stderr, the report to --json or stdout."""
    from octavo.cli.pull import fetched
    from worker.config import WorkerConfig
    from worker.loading import set_threads

    threads = set_threads(WorkerConfig(model="unknown", threads=arguments.threads or 0), os.environ)  # before torch
    path = fetched(arguments.model, progress)
    import torch

    from kernels.backend import backend
    from octavo.bench import bitwise, machine
    from octavo.bench.kernels.rig import weights_of
    from worker import auto
    from worker.layers.weights import torch_dtype
    from worker.sources.open import open_checkpoint

    settings = WorkerConfig(model=str(path), backend=arguments.backend or "auto", cpu_isa=arguments.cpu_isa or "auto")
    rows = []
    with torch.inference_mode():
        with refused():
            checkpoint = open_checkpoint(str(path)).checkpoint
            dtype = torch_dtype(auto.dtype(arguments.dtype, checkpoint.config.get("dtype")))
            ops = backend(settings.backend, threads=threads, isa=settings.cpu_isa)
            packed = bitwise.products(weights_of(checkpoint, dtype, ops))
        for count in arguments.rows:
            sides, own = bitwise.sides(ops, packed, dtype, count), (ops.library_threads, threads)
            rows.append(bitwise.row(sides, count, rounds=arguments.rounds, seconds=arguments.seconds, threads=own))
    progress(bitwise.markdown(rows))
    report = {"tool": "octavo bench bitwise", "model": path.name, "numerics": ops.numerics, "threads": threads}
    made = {"commit": machine.commit(), "machine": machine.machine(), "versions": machine.versions()}
    write({**report, **made, "dtype": str(dtype).removeprefix("torch."), "products": rows}, arguments.json)
    return 0
