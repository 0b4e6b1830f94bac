"""`octavo bench placement`: a trace over simulated workers, policy by policy."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import real
from octavo.cli.bench.options import add_json, positive, progress, write
from shared.errors import InvalidRequest

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
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a file of JSON lines, gzipped or not: timestamp (ms), input_length and output_length (tokens), hash_ids (one for each 512 "
        "tokens of the prompt)",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=POLICIES,
        default=POLICIES,
        metavar="POLICY",
        help=f"of {', '.join(POLICIES)} (all)",
    )
    parser.add_argument("--workers", type=positive, metavar="N", default=8, help="workers (%(default)s)")
    parser.add_argument(
        "--routers", type=positive, metavar="N", default=1, help="routers, which take requests in turn (%(default)s)"
    )
    parser.add_argument(
        "--blocks",
        type=positive,
        metavar="N",
        default=30_000,
        help="blocks of 512 of the trace's tokens that all workers' caches hold together (%(default)s)",
    )
    _add_speed(parser)
    parser.add_argument("--requests", type=positive, metavar="N", help="only the trace's first so many (all)")
    parser.add_argument(
        "--step-times",
        type=Path,
        metavar="FILE",
        help="step times as a worker keeps them in step_times/ of its cache directory (a small model's)",
    )
    parser.add_argument(
        "--over-grpc",
        type=_factor,
        metavar="SECONDS",
        help="replay only what comes in the first so many seconds, simulated and then, in as much time, over real streams between a router "
        "and workers that sleep through their steps; with each policy",
    )
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def _add_speed(parser: argparse.ArgumentParser) -> None:
    """How fast the trace's requests come, or by what that is looked for."""
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--speed",
        type=_factor,
        metavar="FACTOR",
        default=1.0,
        help="times the trace's own requests a second (%(default)s)",
    )
    speed.add_argument(
        "--doubling",
        choices=POLICIES,
        metavar="POLICY",
        help="at the speed where this policy's p99 of TTFT is twice what it is without load, looked for on the same requests",
    )


def _factor(text: str) -> float:
    """argparse's type of a positive, finite number."""
    value = real(0.0)(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def _setup(arguments: argparse.Namespace) -> "Setup":
    """Raises InvalidRequest where the step times cannot be read, or a worker's cache would hold nothing."""
    from octavo.bench.placement import simulation, trace, worker
    from shared.hashing import BLOCK_SIZE
    from worker.scheduler.steptime import ASSUMED, StepTimes

    if arguments.blocks < arguments.workers:
        raise InvalidRequest(f"{arguments.blocks} blocks leave nothing for some of {arguments.workers} workers")
    parameters = ASSUMED
    if arguments.step_times:
        try:
            parameters = StepTimes(json.loads(arguments.step_times.read_bytes())["parameters"]).parameters
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{arguments.step_times} has no step times of a worker: {error}") from error
    each = arguments.blocks * trace.GRAIN // BLOCK_SIZE // arguments.workers
    spec = worker.WorkerSpec(parameters=parameters, blocks=each)
    return simulation.Setup(workers=arguments.workers, routers=arguments.routers, spec=spec)


def run(arguments: argparse.Namespace) -> int:
    """The report of all policies."""
    from octavo.bench.placement import trace

    try:
        arrivals, setup = trace.mooncake(arguments.trace, limit=arguments.requests), _setup(arguments)
    except trace.BadTrace as error:
        raise InvalidRequest(f"{arguments.trace} is no trace: {error}") from error
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
