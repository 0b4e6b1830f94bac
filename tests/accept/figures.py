"""The demo model's figures beside transformers' generate, in turns within one run, with the machine's probe between."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.accept.run import ROOT

ROUNDS = 2
HF_REQUESTS = 8


def _shared() -> Path:
    return Path(os.environ.get("OCTAVO_SHARED", ROOT.parent / "shared"))


def _probe() -> str | None:
    """One line about the machine's speed just now; None where the probe is not at hand."""
    script = _shared() / "peers" / "calibrate.py"
    if not script.exists():
        return None
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def _bench(*arguments: str) -> dict[str, Any]:
    mix = _shared() / "peers" / "workload.json"
    workload = ("--workload", str(mix)) if mix.exists() else ()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "octavo.cli.main", "bench", *arguments, *workload, "--json", str(out)]
        subprocess.run(command, check=True, timeout=1800)
        report: dict[str, Any] = json.loads(out.read_text())
        return report


def show() -> Mapping[str, Any]:
    """Passes where every request was answered; the figures are the point."""
    began, probes, ours, theirs = time.monotonic(), [_probe()], [], []
    for _ in range(ROUNDS):
        ours.append(_bench("serving", "--concurrency", "1", "8", "32"))
        probes.append(_probe())
        theirs.append(_bench("hf", "--requests", str(HF_REQUESTS)))
        probes.append(_probe())
    answered = all(run["failed"] == 0 for report in (*ours, *theirs) for run in report["runs"])
    seconds = round(time.monotonic() - began, 1)
    return {"passed": answered, "octavo": ours, "transformers": theirs, "probes": probes, "seconds": seconds}
