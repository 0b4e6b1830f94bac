"""`octavo bench sweep`: a step's time as work grows."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import output
from octavo.cli.bench.options import add_engine, add_json, positive, progress, write

if TYPE_CHECKING:
    from octavo.bench.plot import Panel
    from worker.config import WorkerConfig

_BATCHES = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128]
_CONTEXTS = [100, 200, 400, 800, 1600, 3200, 6400, 8000]
_CHUNKS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "sweep",
        help="a step's time as batch, context and chunk grow",
        description="The runner alone, on steps made by hand: decode steps of growing batch, decode steps of growing context, and prompts "
        "of growing length. A growth of 1 is linear.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument(
        "--batches", type=positive, nargs="+", default=_BATCHES, help="at the first of --at (1 ... 128)"
    )
    parser.add_argument("--contexts", type=positive, nargs="+", default=_CONTEXTS, help="(100 ... 8000)")
    parser.add_argument("--chunks", type=positive, nargs="+", default=_CHUNKS, help="(1 ... 2048)")
    parser.add_argument("--at", type=positive, nargs=2, default=[200, 8], metavar=("CONTEXT", "BATCH"), help="(200 8)")
    parser.add_argument("--repeats", type=positive, default=8, help="of a step each time (%(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, help="over all points (%(default)s)")
    parser.add_argument("--svg", type=output, metavar="OUT", help="where a plot goes")
    add_engine(parser)
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def settings(arguments: argparse.Namespace, model: str) -> "WorkerConfig":
    """The worker's, with room for the largest batch and the longest chunk. Raises InvalidRequest where values do not go together."""
    from shared.errors import InvalidRequest
    from worker.config import WorkerConfig

    running = max(arguments.max_running or 0, *arguments.batches, arguments.at[1])
    given = {name: getattr(arguments, name) for name in ("backend", "cpu_isa", "threads")}
    try:
        return WorkerConfig(
            model=model,
            dtype=arguments.dtype,
            max_running=running,
            step_tokens=max(arguments.step_tokens or 0, running, *arguments.chunks),
            prefix_cache=False,
            **{name: value for name, value in given.items() if value is not None},
        )
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def panels(rows: list[dict[str, Any]]) -> "list[Panel]":
    """The plot's, one an axis."""
    from octavo.bench.plot import Curve, Panel
    from octavo.bench.sweep import curves

    titles = {"batch": "decode, by batch", "context": "decode, by context", "chunk": "one prompt, by length"}
    found: dict[str, list[Curve]] = {}
    for (axis, batch), curve in curves(rows).items():
        label = f"batch {batch}" if axis == "context" else "measured"
        xs, ys = tuple(row["x"] for row in curve), tuple(row["ms"] for row in curve)
        found.setdefault(axis, []).append(Curve(label=label, xs=xs, ys=ys))
    return [Panel(title=titles[axis], x=axis, y="ms a step", curves=tuple(drawn)) for axis, drawn in found.items()]


def run(arguments: argparse.Namespace) -> int:
    """The table goes to stderr, the report to --json or stdout."""
    from octavo.bench import machine, sweep
    from octavo.bench.engine import parts_of
    from octavo.bench.plot import svg
    from octavo.cli.pull import fetched
    from worker.loading import set_threads

    set_threads(settings(arguments, "unknown"), os.environ)  # before torch is imported, which `fetched` may do
    path = fetched(arguments.model, progress)
    parts = parts_of(settings(arguments, str(path)))
    longest = parts.info.max_model_len
    asked = list(sweep.points(arguments.batches, arguments.contexts, arguments.chunks, at=tuple(arguments.at)))
    wanted = [point for point in asked if point.context + point.chunk < longest]
    if len(wanted) < len(asked):
        progress(f"{len(asked) - len(wanted)} of {len(asked)} steps are left out: the context is {longest} tokens long")
    rows = sweep.measure(
        sweep.bench_of(parts), wanted, repeats=arguments.repeats, rounds=arguments.rounds, progress=progress
    )
    progress(sweep.markdown(rows))
    if arguments.svg:
        arguments.svg.write_text(svg(panels(rows)))
    report = {"tool": "octavo bench sweep", "model": path.name, "numerics_id": parts.info.numerics_id}
    made = {"commit": machine.commit(), "machine": machine.machine(), "versions": machine.versions()}
    write({**report, **made, "rounds": arguments.rounds, "repeats": arguments.repeats, "steps": rows}, arguments.json)
    return 0
