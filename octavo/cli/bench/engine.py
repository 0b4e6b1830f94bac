"""`octavo bench engine`: the engine alone, in this process."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from octavo.cli.bench.options import add_engine, add_workload, load, positive, progress, workload_of, write

if TYPE_CHECKING:
    from octavo.bench.workload import Workload
    from worker.config import WorkerConfig


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "engine",
        help="the engine alone, all requests at once",
        description="Scheduler and runner in this process, without wire, router and text: all requests of the workload at once, and its "
        "probes one at a time, beside what this machine's memory and arithmetic allow, measured in the same run.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument("--requests", type=positive, help="of the workload (all)")
    parser.add_argument("--repeats", type=positive, default=3, help="of the whole workload (%(default)s)")
    parser.add_argument("--at", type=load, nargs="+", default=[], metavar="C:N", help="also N requests, C at a time")
    parser.add_argument("--depth", choices=("auto", "0", "1"), default="auto", help="steps planned ahead (%(default)s)")
    parser.add_argument("--prefix-cache", action="store_true", help="keep KV of equal prefixes, which the runs repeat")
    parser.add_argument(
        "--no-deterministic", action="store_true", help="let a request's bits depend on its batch, to see what it costs"
    )
    add_engine(parser)
    add_workload(parser)
    parser.set_defaults(run=run, takes_rest=False)


def settings(arguments: argparse.Namespace, model: str, workload: "Workload") -> "WorkerConfig":
    """The worker's, with room for the workload. Raises InvalidRequest where values do not go together."""
    from shared.errors import InvalidRequest
    from worker.config import WorkerConfig

    names = ("backend", "cpu_isa", "threads", "max_running", "step_tokens")
    given = {name: getattr(arguments, name) for name in names}
    try:
        return WorkerConfig(
            model=model,
            dtype=arguments.dtype,
            depth=arguments.depth,
            prefix_cache=arguments.prefix_cache,
            target_itl_ms="off",  # throughput is asked for, and the peers have no such bound
            deterministic=not arguments.no_deterministic,
            max_waiting=len(workload.items),
            **{name: value for name, value in given.items() if value is not None},
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def run(arguments: argparse.Namespace) -> int:
    """The report of all runs."""
    from octavo.bench import engine
    from octavo.cli.pull import fetched
    from worker.loading import set_threads

    workload = workload_of(arguments)
    if arguments.requests:
        workload = workload.first(arguments.requests)
    set_threads(
        settings(arguments, "unknown", workload), os.environ
    )  # before torch is imported, which `fetched` may do
    path = fetched(arguments.model, progress)
    loaded = engine.loaded(settings(arguments, str(path), workload))
    write(
        engine.measure(loaded, workload, repeats=arguments.repeats, loads=arguments.at, progress=progress),
        arguments.json,
    )
    return 0
