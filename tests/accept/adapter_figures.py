"""What adapters cost on the demo model, beside what the machine allows: `octavo bench adapters`, and what is asked of its figures."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LEAST = {"1/1": 0.90, "128/16": 0.80, "200/200": 0.85}  # of the bound
LEAST_IDLE = 0.98  # of the throughput without slots: "no cost", within what pairs of equal runs differ by
MOST_TTFT = 2.0  # times that of 16 adapters on 16 slots, with 24
LIMIT_SECONDS = 1200


def judged(report: Mapping[str, Any]) -> dict[str, Any]:
    """Each figure, what is asked of it, and whether it is met."""
    lines = {
        case["case"]: {"share_of_bound": case["share_of_bound"], "least": LEAST[case["case"]]}
        for case in report["cases"]
    }
    told: dict[str, dict[str, Any]] = {
        name: {**line, "passed": line["share_of_bound"] >= line["least"]} for name, line in lines.items()
    }
    idle, cliff = report["idle"]["ratio"], report["cliff"]["ratio"]
    told["idle"] = {"ratio": idle, "least": LEAST_IDLE, "passed": idle >= LEAST_IDLE}
    told["cliff"] = {"ratio": cliff, "most": MOST_TTFT, "passed": cliff <= MOST_TTFT}
    return told


def show() -> Mapping[str, Any]:
    """All parts, as the command has them by default."""
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "octavo.cli.main", "bench", "adapters", "--parts", *LEAST, "idle", "cliff"]
        subprocess.run([*command, "--json", str(out)], check=True, timeout=LIMIT_SECONDS)
        report = json.loads(out.read_text())
    told = judged(report)
    seconds = round(time.monotonic() - began, 1)
    return {
        "passed": all(line["passed"] for line in told.values()),
        "judged": told,
        "report": report,
        "seconds": seconds,
    }
