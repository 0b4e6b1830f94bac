"""`octavo bench peers`: the whole run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from octavo.bench import machine
from octavo.bench.peers import programs, servers
from octavo.bench.peers.processes import Ended, Program, run
from octavo.bench.peers.programs import Figures, Setting
from octavo.bench.peers.rounds import Contest, contest, told
from octavo.bench.peers.servers import under
from octavo.bench.workload import Workload, written

OFFLINE = ("output_throughput", "decode_tokens_per_s", "ttft_ms", "start_s", "peak_rss_bytes")
LOAD = (
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_itl_ms",
    "p99_itl_ms",
)
PARTS = ("offline", "serving")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`parts` of PARTS; `rounds` of each pair."""

    peers: tuple[str, ...]
    parts: tuple[str, ...]
    rounds: int


def write_workload(workload: Workload, path: Path) -> Path:
    """In the form that the peers' programs read."""
    path.write_text(json.dumps(written(workload)))
    return path


class Sides(Protocol):
    """Whose turn it can be. Each takes its turn in processes that are gone when it returns; each may raise ProgramFailed."""

    def machine(self) -> Figures:
        """The probe."""

    def ours(self, *, loads: bool) -> Figures:
        """Our engine; with `loads` at several numbers of requests at a time as well."""

    def theirs(self, peer: str) -> Figures:
        """A peer's engine."""

    def served(self, side: str) -> Figures:
        """A server ("octavo" or a peer's) under the client, one load after the other."""

    def both_ways(self) -> Figures:
        """Our server, with our engine at the same loads beside it."""


class Processes:
    """The real sides. `folder` is for files that the turns exchange."""

    def __init__(self, setting: Setting, timeout: float, folder: Path, progress: Callable[[str], None]):
        self._setting = setting
        self._timeout = timeout
        self._report = folder / "report.json"
        self._progress = progress

    def machine(self) -> Figures:
        """As Sides says; so below."""
        seen = programs.calibration(self._setting, self._run)
        self._progress("machine: " + ", ".join(f"{name} {value:g}" for name, value in seen.items()))
        return dict(seen)

    def ours(self, *, loads: bool) -> Figures:
        setting = self._setting if loads else replace(self._setting, loads=())
        return self._said("octavo", programs.octavo(setting, self._run, self._report))

    def theirs(self, peer: str) -> Figures:
        return self._said(peer, programs.OFFLINE[peer](self._setting, self._run))

    def served(self, side: str) -> Figures:
        with servers.SERVERS[side](self._setting, self._timeout) as server:
            at = {}
            for load in self._setting.loads:
                at[str(load.concurrency)] = under(server, self._setting, load, self._run, self._report)
                self._progress(
                    f"{side} served at {load}: {at[str(load.concurrency)]['output_throughput']} output tok/s"
                )
        return {"at": at}

    def both_ways(self) -> Figures:
        engine = programs.octavo(replace(self._setting, repeats=1), self._run, self._report)
        return {**self.served("octavo"), "engine_at": engine["at"]}

    def _run(self, program: Program) -> Ended:
        return run(program, self._timeout)

    def _said(self, side: str, figures: Figures) -> Figures:
        self._progress(f"{side}: " + ", ".join(f"{name} {figures[name]:g}" for name in OFFLINE[:3]))
        return figures


def _loads(it: Contest) -> dict[str, Any]:
    """The comparison at each concurrency that both sides have."""
    levels = sorted({level for pair in it.pairs for level in pair.theirs.get("at", {})}, key=int)
    found = {}
    for level in levels:
        pairs = [
            replace(pair, ours=pair.ours["at"][level], theirs=pair.theirs["at"][level])
            for pair in it.pairs
            if level in pair.ours["at"] and level in pair.theirs["at"]
        ]
        found[level] = told(replace(it, pairs=tuple(pairs)), LOAD)["compared"]
    return found


def _served_share(it: Contest) -> dict[str, list[float]]:
    """Our server's output tokens/s over our engine's at the same load, of each round."""
    shares: dict[str, list[float]] = {}
    for pair in it.pairs:
        for level, at in pair.ours["at"].items():
            share = at["output_throughput"] / pair.ours["engine_at"][level]["output_throughput"]
            shares.setdefault(level, []).append(round(share, 4))
    return shares


def measure(sides: Sides, setting: Setting, plan: Plan, workload: Workload) -> dict[str, Any]:
    """The report."""
    offline: list[dict[str, Any]] = []
    serving: list[dict[str, Any]] = []
    for peer in plan.peers if "offline" in plan.parts else ():
        ours = partial(sides.ours, loads=peer == "openvino")  # which alone is run in process at several loads
        it = contest(peer, ours, partial(sides.theirs, peer), sides.machine, plan.rounds)
        offline.append({**told(it, OFFLINE), "at": _loads(it)})
    for peer in _servers(plan):
        it = contest(peer, sides.both_ways, partial(sides.served, peer), sides.machine, plan.rounds)
        serving.append({**told(it, ()), "at": _loads(it), "share_of_engine": _served_share(it)})
    return {
        "tool": "octavo bench peers",
        "model": setting.model.name,
        "workload": workload.name,
        "requests": setting.requests,
        "commit": machine.commit(),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "engine": list(setting.engine),
        "loads": [str(load) for load in setting.loads],
        "rounds": plan.rounds,
        "offline": offline,
        "serving": serving,
    }


def _servers(plan: Plan) -> Sequence[str]:
    return [peer for peer in plan.peers if peer in servers.SERVERS] if "serving" in plan.parts else []
