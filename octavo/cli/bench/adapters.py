"""`octavo bench adapters`: what adapters cost."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import real, whole
from octavo.cli.bench.options import add_kernels, add_workload, positive, progress, workload_of, write

if TYPE_CHECKING:
    from worker.config import WorkerConfig

IDLE, CLIFF, VLLM = "idle", "cliff", "vllm"
CASES = ("1/1", "128/16", "200/200")


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "adapters",
        help="what LoRA adapters cost",
        description="The engine in this process, in turns with adapters and without. D/S: throughput with D adapters on S device slots, "
        "beside what reading each step's different adapters allows. Where they fit, requests take them in turn and D run at a time; "
        "else they are drawn by Zipf's law. idle: batches without adapters, on an engine with slots and on one without. cliff: the "
        "time to the first token with 24 adapters on 16 slots and with 16, at 70 % of the capacity. vllm: its CPU build with eight "
        "adapters beside ours on a few requests, where `octavo bench peers` finds it (minutes).",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument(
        "--parts",
        type=part,
        nargs="+",
        default=[*CASES, IDLE, CLIFF],
        metavar="PART",
        help=f"D/S, {IDLE}, {CLIFF}, {VLLM} ({' '.join((*CASES, IDLE, CLIFF))})",
    )
    parser.add_argument("--rank", type=whole(1, 256), default=8, help="of the adapters (%(default)s)")
    parser.add_argument("--pairs", type=positive, default=3, help="of each comparison (%(default)s)")
    parser.add_argument("--requests", type=positive, default=96, help="of each run (%(default)s)")
    parser.add_argument("--seconds", type=real(1.0), default=25.0, help="of each run of the cliff (%(default)s)")
    add_kernels(parser)
    add_workload(parser)
    parser.set_defaults(run=run, takes_rest=False)


def part(text: str) -> str:
    """argparse's type of a part's name."""
    distinct, _, slots = text.partition("/")
    if text not in (IDLE, CLIFF, VLLM) and not (_count(distinct) and _count(slots)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no part: {IDLE}, {CLIFF}, {VLLM}, or adapters and slots such as 128/16"
        )
    return text


def _count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 4 and text[0] != "0"


def settings(arguments: argparse.Namespace, model: str) -> "WorkerConfig":
    """The worker's, of which some change from part to part. Raises InvalidRequest."""
    from shared.errors import InvalidRequest
    from worker.config import WorkerConfig

    given = {name: getattr(arguments, name) for name in ("backend", "cpu_isa", "threads")}
    try:
        return WorkerConfig(
            model=model,
            dtype=arguments.dtype,
            target_itl_ms="off",
            max_waiting=100_000,
            memory_share=0.4,  # two engines share the machine
            max_adapter_rank=max(arguments.rank, 16),
            **{name: value for name, value in given.items() if value is not None},
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def run(arguments: argparse.Namespace) -> int:
    """The table goes to stderr, the report to --json or stdout."""
    from octavo.cli.pull import fetched
    from worker.loading import set_threads

    threads = set_threads(settings(arguments, "unknown"), os.environ)  # before torch is imported
    path = fetched(arguments.model, progress)
    from octavo.bench.adapters.cases import parsed
    from octavo.bench.adapters.measure import Asked, measure
    from octavo.bench.adapters.report import markdown, report

    asked = Asked(
        settings=settings(arguments, str(path)),
        threads=threads,
        workload=workload_of(arguments),
        cases=tuple(parsed(text) for text in arguments.parts if text not in (IDLE, CLIFF, VLLM)),
        parts=tuple(arguments.parts),
        rank=arguments.rank,
        pairs=arguments.pairs,
        requests=arguments.requests,
        seconds=arguments.seconds,
        seed=arguments.seed,
    )
    made = report(path.name, measure(asked, progress))
    progress(markdown(made))
    write(made, arguments.json)
    return 0
