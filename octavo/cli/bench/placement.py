"""`octavo bench placement`: a trace over simulated workers, policy by policy."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.bench.options import add_json, positive, progress, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.bench.placement.simulation import Setup
    from octavo.bench.placement.trace import Arrival

POLICIES = ("cost", "least_loaded", "round_robin", "session")  # as router.placement has them, which is imported late


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "placement",
        help="the router's policies over simulated workers",
        description="Replays a trace of Mooncake's form over simulated workers, with each policy in turn: the router's own "
        "policies and index, the worker's own scheduler and block pool, time by the step-time model. The same arguments "
        "give the same figures.",
    )
    parser.add_argument("trace", type=Path, help="a .jsonl.gz of timestamps, lengths and block hashes")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, metavar="POLICY", help="(all)")
    parser.add_argument("--workers", type=positive, default=8, help="(%(default)s)")
    parser.add_argument("--routers", type=positive, default=1, help="that take requests in turn (%(default)s)")
    parser.add_argument("--blocks", type=positive, default=30_000, help="of the trace, over all caches (%(default)s)")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--speed", type=_factor, default=1.0, help="times as many requests a second (%(default)s)")
    speed.add_argument(
        "--doubling",
        choices=POLICIES,
        metavar="POLICY",
        help="at the speed where this policy's p99 of TTFT is twice what it is without load, looked for on the same requests",
    )
    parser.add_argument("--requests", type=positive, help="the trace's first so many (all)")
    parser.add_argument(
        "--step-times",
        type=Path,
        metavar="FILE",
        help="that a worker keeps below its cache directory (a small model's)",
    )
    parser.add_argument(
        "--over-grpc",
        type=_factor,
        metavar="SECONDS",
        help="only what comes in the first so many seconds, simulated and then, in as much time, over real streams between a router and "
        "workers that sleep through their steps; with each policy",
    )
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def _factor(text: str) -> float:
    """argparse's type of a positive, finite number."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be positive and finite")
    return value


def _setup(arguments: argparse.Namespace) -> "Setup":
    """Raises OSError, ValueError, KeyError or TypeError where the step times cannot be read."""
    from octavo.bench.placement import simulation, trace, worker
    from shared.hashing import BLOCK_SIZE
    from worker.scheduler.steptime import ASSUMED, StepTimes

    parameters = ASSUMED
    if arguments.step_times:
        parameters = StepTimes(json.loads(arguments.step_times.read_bytes())["parameters"]).parameters
    each = arguments.blocks * trace.GRAIN // BLOCK_SIZE // arguments.workers
    spec = worker.WorkerSpec(parameters=parameters, blocks=each)
    return simulation.Setup(workers=arguments.workers, routers=arguments.routers, spec=spec)


def run(arguments: argparse.Namespace) -> int:
    """The report of all policies."""
    from octavo.bench.placement import trace

    try:
        arrivals, setup = trace.mooncake(arguments.trace, limit=arguments.requests), _setup(arguments)
    except (OSError, ValueError, KeyError, TypeError) as error:
        progress(f"octavo: cannot read that: {error}")
        return 1
    return _tell(arguments, arrivals, setup) if arrivals else _nothing()


def _nothing() -> int:
    progress("octavo: the trace has no request in that time")
    return 1


def _tell(arguments: argparse.Namespace, arrivals: "Sequence[Arrival]", setup: "Setup") -> int:
    from octavo.bench.placement import report, trace

    told: dict[str, Any] = {"workers": arguments.workers, "routers": arguments.routers, "blocks": arguments.blocks}
    speed, seconds = arguments.speed, arguments.over_grpc
    if arguments.doubling:
        told["doubling"] = report.doubled(arrivals, arguments.doubling, setup, progress)
        speed = told["doubling"]["speed"]
    arrivals = trace.faster(arrivals, speed)
    if seconds and not (arrivals := report.as_requests(arrivals, seconds)):
        return _nothing()
    told |= {"speed": speed, "step_times": list(setup.spec.parameters)}
    told |= report.side_by_side(
        arrivals, arguments.policies, setup, arguments.blocks, progress, over_grpc=bool(seconds)
    )
    told["ttft_p99_by"] = report.ttft_shares(told["policies"], progress)
    write(told, arguments.json)
    return 0
