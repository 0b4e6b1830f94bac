"""`octavo bench peers`: other engines beside ours."""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import output
from octavo.cli.bench.options import add_engine, add_json, load, positive, progress, write

if TYPE_CHECKING:
    from octavo.bench.peers.contest import Plan
    from octavo.bench.workload import Workload

QUICK_REQUESTS, QUICK_OUTPUT = 4, 8


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "peers",
        help="other engines and ours, in turns",
        description="Our engine and each peer that is installed under $PEERS_HOME (~/.cache/octavo-peers; setup.sh beside their programs "
        "does it), in turns on the same model and workload, with a probe of the machine between; then the servers among them under one "
        "client. Nothing else should run.",
    )
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="openvino, vllm, transformers (all that are found)")
    parser.add_argument("--parts", nargs="+", choices=("offline", "serving"), default=["offline", "serving"])
    parser.add_argument("--rounds", type=positive, default=3, help="of ours and theirs (%(default)s)")
    parser.add_argument("--repeats", type=positive, default=2, help="of the workload in each process (%(default)s)")
    parser.add_argument(
        "--at",
        type=load,
        nargs="+",
        default=[(1, 16), (8, 96), (32, 96)],
        metavar="C:N",
        help="N requests, C at a time, for servers (1:16 8:96 32:96)",
    )
    parser.add_argument("--workload", type=Path, help="a JSON file of requests (that beside the peers' programs)")
    parser.add_argument("--scripts", type=Path, help="the peers' programs (in shared/peers beside the checkout)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each program (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few short requests, to see that all runs: no figures")
    parser.add_argument("--table", type=output, metavar="OUT", help="where the tables go as Markdown (stderr)")
    add_engine(parser)
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def quick(workload: "Workload") -> "Workload":
    """A few short requests of the workload and one probe of each kind."""
    from octavo.bench.workload import Item, Probes, Workload

    items = tuple(Item(prompt=item.prompt, output_tokens=QUICK_OUTPUT) for item in workload.items[:QUICK_REQUESTS])
    probes = Probes(prefill=workload.probes.prefill[:1], decode=workload.probes.decode[:1])
    return Workload(name=f"{workload.name}, cut short", items=items, probes=probes)


def engine_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What is said of our engine, as the worker's flags; as many requests may run as the peers run."""
    given = {"dtype": arguments.dtype, "max-running": arguments.max_running or 96}
    given |= {
        "step-tokens": arguments.step_tokens,
        "threads": arguments.threads,
        "backend": arguments.backend,
        "cpu-isa": arguments.cpu_isa,
    }
    return tuple(text for name, value in given.items() if value is not None for text in (f"--{name}", str(value)))


def _plan(arguments: argparse.Namespace, home: Path) -> "Plan":
    from octavo.bench.peers import programs
    from octavo.bench.peers.contest import Plan
    from shared.errors import InvalidRequest

    found = programs.installed(home)
    peers = tuple(arguments.peers or found)
    if unknown := set(peers) - set(programs.OFFLINE):
        raise InvalidRequest(f"no such peers: {', '.join(sorted(unknown))}; known: {', '.join(programs.OFFLINE)}")
    missing = [name for name in peers if name not in found]
    if missing or not peers:
        what = f"{', '.join(missing)}: not" if missing else "no peer is"
        raise InvalidRequest(
            f"{what} installed in {home} (setup.sh beside the peers' programs installs; PEERS_HOME names another place)"
        )
    rounds = 1 if arguments.quick else arguments.rounds
    return Plan(peers=peers, parts=tuple(arguments.parts), rounds=rounds)


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where a peer, or ours beside it, failed; its row says why."""
    from octavo.bench import workload
    from octavo.bench.peers import contest, programs, table
    from octavo.bench.peers.programs import Load, Setting

    home, scripts = programs.home(os.environ), arguments.scripts or programs.scripts(os.environ)
    plan = _plan(arguments, home)
    mix = workload.read(arguments.workload or scripts / "workload.json")
    mix = quick(mix) if arguments.quick else mix
    loads = [(c, min(n, QUICK_REQUESTS)) for c, n in arguments.at] if arguments.quick else arguments.at
    with TemporaryDirectory(prefix="octavo-bench-") as made:
        setting = Setting(
            home=home,
            scripts=scripts,
            workload=contest.write_workload(mix, Path(made) / "workload.json"),
            requests=len(mix.items),
            repeats=arguments.repeats,
            loads=tuple(Load(concurrency=c, requests=n) for c, n in loads),
            engine=engine_flags(arguments),
        )
        sides = contest.Processes(setting, arguments.timeout, Path(made), progress)
        report = contest.measure(sides, setting, plan, mix)
    text = table.markdown(report)
    arguments.table.write_text(text) if arguments.table else progress(text)
    write(report, arguments.json)
    return 1 if any(it["failed"] for it in (*report["offline"], *report["serving"])) else 0
