"""`octavo bench placement`: a trace over simulated workers, policy by policy."""

import argparse
import json
from pathlib import Path
from typing import Any

from octavo.cli.bench.options import add_json, positive, progress, write

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
    parser.add_argument("--speed", type=_factor, default=1.0, help="times as many requests a second (%(default)s)")
    parser.add_argument("--requests", type=positive, help="the trace's first so many (all)")
    parser.add_argument(
        "--step-times",
        type=Path,
        metavar="FILE",
        help="that a worker keeps below its cache directory (a small model's)",
    )
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def _factor(text: str) -> float:
    """argparse's type of a positive, finite number."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be positive and finite")
    return value


def run(arguments: argparse.Namespace) -> int:
    """The report of all policies."""
    from octavo.bench.placement import bound, measures, simulation, trace, worker
    from router import placement
    from shared.hashing import BLOCK_SIZE
    from worker.scheduler.steptime import ASSUMED

    try:
        arrivals = trace.faster(trace.mooncake(arguments.trace, limit=arguments.requests), arguments.speed)
        parameters = (
            tuple(json.loads(arguments.step_times.read_bytes())["parameters"]) if arguments.step_times else ASSUMED
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        progress(f"octavo: cannot read that: {error}")
        return 1
    each = arguments.blocks * trace.GRAIN // BLOCK_SIZE // arguments.workers
    setup = simulation.Setup(
        workers=arguments.workers,
        routers=arguments.routers,
        spec=worker.WorkerSpec(parameters=parameters, blocks=each),
    )
    report: dict[str, Any] = {
        "workers": arguments.workers,
        "routers": arguments.routers,
        "blocks": arguments.blocks,
        "speed": arguments.speed,
        "step_times": list(parameters),
        "bound_hit_rate": bound.lru_hit_rate(arrivals, arguments.blocks),
        "policies": {},
    }
    for name in arguments.policies:
        found = measures.summary(simulation.simulate(arrivals, placement.POLICIES[name], setup))
        report["policies"][name] = found
        progress(
            f"{name:>12}: hit rate {found['hit_rate']:.3f} of {report['bound_hit_rate']:.3f}, imbalance p95 {found['imbalance_p95']:.2f}, "
            f"TTFT p50 / p99 {found['ttft_p50']:.2f} / {found['ttft_p99']:.2f} s, {found['failed']} failed"
        )
    write(report, arguments.json)
    return 0
