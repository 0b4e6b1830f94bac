"""How each peer is run, and what its program says: the scripts beside the peers' workload, and `octavo` itself in the same form."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.peers.processes import Ended, Program, ProgramFailed, command_line

Figures = dict[str, Any]

_PROBE = re.compile(r"TTFT512 ([\d.]+) ms.*decode bs1 ([\d.]+) tok/s")
_STARTUP = re.compile(r"^startup ([\d.]+)s", re.MULTILINE)
_WHOLE = re.compile(r"run\d+: ([\d.]+) out tok/s")
_SINGLE = re.compile(r"hf single n=(\d+): ([\d.]+) out tok/s")
_AT = re.compile(
    r"conc=(\d+) n=(\d+): ([\d.]+) out tok/s \| TTFT p50/p99 ([\d.]+)/([\d.]+) ms \| TPOT p50/p99 ([\d.]+)/([\d.]+) ms"
)
_CALIBRATION = re.compile(r"GEMM2048 ([\d.]+) .*64x576x1536 ([\d.]+) .*read ([\d.]+) ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """`requests` of the workload, `concurrency` at a time."""

    concurrency: int
    requests: int

    def __str__(self) -> str:
        return f"{self.concurrency}:{self.requests}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What all sides get. `home` holds the peers' environments, `scripts` their programs; `engine` are flags of our engine."""

    home: Path
    scripts: Path
    workload: Path
    requests: int
    repeats: int
    loads: tuple[Load, ...]
    engine: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """The model that all but OpenVINO read."""
        return self.home / "models" / "smollm2-135m"

    @property
    def env(self) -> dict[str, str]:
        """For the peers' programs."""
        return {"PEERS_HOME": str(self.home), "WORKLOAD": str(self.workload)}

    def python(self, environment: str) -> Path:
        """The interpreter of one of the peers' environments."""
        return self.home / environment / "bin" / "python"


Runner = Callable[[Program], Ended]


def _found(pattern: re.Pattern[str], output: str) -> tuple[str, ...]:
    match = pattern.search(output)
    if match is None:
        raise ProgramFailed(f"its output has no {pattern.pattern!r}: {output.strip()[-300:]}")
    return match.groups()


def _probes(output: str) -> Figures:
    ttft, decode = _found(_PROBE, output)
    return {"ttft_ms": float(ttft), "decode_tokens_per_s": float(decode)}


def told_offline(ended: Ended) -> Figures:
    """Figures from what vllm_offline.py or openvino_offline.py printed; the median of its runs of the whole workload."""
    whole = sorted(float(rate) for rate in _WHOLE.findall(ended.output))
    if not whole:
        raise ProgramFailed(f"its output tells no run: {ended.output.strip()[-300:]}")
    return {
        "output_throughput": whole[len(whole) // 2] if len(whole) % 2 else sum(whole[len(whole) // 2 - 1 :][:2]) / 2,
        **_probes(ended.output),
        "start_s": float(_found(_STARTUP, ended.output)[0]),
        "peak_rss_bytes": ended.peak_rss,
        "at": {match[0]: _load_figures(match) for match in _AT.findall(ended.output)},
    }


def _load_figures(match: Sequence[str]) -> Figures:
    names = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")
    return dict(zip(names, map(float, match[2:]), strict=True))


def openvino(setting: Setting, run: Runner) -> Figures:
    """OpenVINO GenAI: the workload at once, probes, and in process so many requests at a time."""
    command = (setting.python("ov"), setting.scripts / "openvino_offline.py", setting.repeats)
    loads = ",".join(map(str, setting.loads))
    seqs = str(max(setting.requests, 96))
    return told_offline(run(Program(command=command_line(*command), env={**setting.env, "CONC": loads, "SEQS": seqs})))


def vllm(setting: Setting, run: Runner) -> Figures:
    """vLLM's CPU build: the workload at once, and probes."""
    command = (setting.python("vllm"), setting.scripts / "vllm_offline.py", setting.repeats)
    return told_offline(run(Program(command=command_line(*command), env=setting.env)))


def transformers(setting: Setting, run: Runner) -> Figures:
    """transformers' generate: 16 requests one after the other, and probes."""
    script = (setting.python("hf"), setting.scripts / "hf_bench.py")
    probe = run(Program(command=command_line(*script, "probe"), env=setting.env))
    single = run(Program(command=command_line(*script, "single", min(16, setting.requests)), env=setting.env))
    count, rate = _found(_SINGLE, single.output)
    return {
        "output_throughput": float(rate),
        "requests": int(count),
        **_probes(probe.output),
        "start_s": float(_found(_STARTUP, single.output)[0]),
        "peak_rss_bytes": max(probe.peak_rss, single.peak_rss),
    }


def octavo(setting: Setting, run: Runner, report: Path) -> Figures:
    """`octavo bench engine`, which writes to `report`."""
    loads = ("--at", *map(str, setting.loads)) if setting.loads else ()
    flags = (*loads, "--repeats", str(setting.repeats), *setting.engine)
    where = ("--model", str(setting.model), "--workload", str(setting.workload), "--json", str(report))
    command = (sys.executable, "-P", "-m", "octavo.cli.main", "bench", "engine", *where, *flags)
    report.unlink(missing_ok=True)
    run(Program(command=command_line(*command)))
    return told_octavo(json.loads(report.read_text()))


def told_octavo(report: Mapping[str, Any]) -> Figures:
    """The same figures from our own report, and what it says of the machine's bound."""
    runs, at = report["runs"], report["at"]
    whole = sorted(run["output_throughput"] for run in runs)
    middle = sorted(runs, key=lambda run: run["output_throughput"])[len(runs) // 2]
    return {
        "output_throughput": whole[len(whole) // 2] if len(whole) % 2 else sum(whole[len(whole) // 2 - 1 :][:2]) / 2,
        "ttft_ms": report["probes"]["ttft_ms"],
        "decode_tokens_per_s": report["probes"]["decode_tokens_per_s"],
        "start_s": report["load_s"],
        "peak_rss_bytes": report["peak_rss_bytes"],
        "at": {str(run["concurrency"]): run for run in at},
        "share_of_bound": middle["bound"]["share_reached"],
        "share_of_read_bound": report["probes"].get("share_of_read_bound"),
        "report": report,
    }


def calibration(setting: Setting, run: Runner) -> dict[str, float]:
    """The machine's probe: GFLOP/s of a large bf16 product and of one with 64 rows, GB/s read."""
    command = command_line(helper_python(setting), setting.scripts / "calibrate.py")
    large, small, read = _found(_CALIBRATION, run(Program(command=command, env=setting.env)).output)
    return {"large_gflop_s": float(large), "rows64_gflop_s": float(small), "read_gb_s": float(read)}


def helper_python(setting: Setting) -> Path:
    """The interpreter for the probe and the client: the peers' own, or ours where that is not installed."""
    theirs = setting.python("hf")
    return theirs if theirs.exists() else Path(sys.executable)


OFFLINE: Mapping[str, Callable[[Setting, Runner], Figures]] = {
    "openvino": openvino,
    "vllm": vllm,
    "transformers": transformers,
}
ENVIRONMENTS: Mapping[str, str] = {"openvino": "ov", "vllm": "vllm", "transformers": "hf"}


def home(environ: Mapping[str, str]) -> Path:
    """Where the peers' environments are."""
    return Path(environ.get("PEERS_HOME", Path.home() / ".cache" / "octavo-peers"))


def scripts(environ: Mapping[str, str]) -> Path:
    """Where their programs are: beside the checkout, or where OCTAVO_SHARED says."""
    return Path(environ.get("OCTAVO_SHARED", Path(__file__).parents[3].parent / "shared")) / "peers"


def installed(home: Path) -> tuple[str, ...]:
    """The peers that have an interpreter there."""
    return tuple(name for name, folder in ENVIRONMENTS.items() if os.access(home / folder / "bin" / "python", os.X_OK))
