"""The spine's acceptance, line by line: `make accept NAME=spine` writes docs/results/spine.json and exits 1 where a line fails.

A line is a claim and the tests that show it, run with the judge in full. The images (line 7) are `make soak`, the figures (line 8) are
`make bench`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from octavo.bench.machine import commit, machine, versions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "spine.json"
LINE_SECONDS = 3_600

LINES: dict[str, tuple[str, ...]] = {
    "1 serve answers with the real model": ("tests/e2e/test_judge_demo_model.py", "tests/e2e/test_commands.py"),
    "2 greedy tokens are transformers'": ("tests/e2e/test_judge_smollm2.py", "tests/e2e/test_judge_stories260k.py"),
    "3 openai client and fresh stubs": ("tests/e2e/test_openai_client.py", "tests/e2e/test_fresh_stubs.py"),
    "4 clients and workers vanish": ("tests/e2e/test_clients_and_workers_vanish.py",),
    "5 properties of scheduler, pool and cache": ("tests/unit/scheduler", "tests/unit/kvcache"),
    "6 planted violations are refused": ("tests/architecture",),
    "9 reported cases": ("tests/integration", "tests/unit", "-k", "c16 or c17 or c19 or c27 or c32 or c33 or c39"),
}


def show(tests: tuple[str, ...]) -> dict[str, object]:
    """Run a line's tests: whether all passed, pytest's own summary, and the seconds it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environ = {**os.environ, "OCTAVO_JUDGE": "full"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LINE_SECONDS, check=False
    )
    summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return {"passed": done.returncode == 0, "summary": summary, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    """Every line, told as it goes."""
    lines = {}
    for claim, tests in LINES.items():
        lines[claim] = show(tests)
        print(claim, lines[claim], flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps({"commit": commit(), "machine": machine(), "versions": versions(), "lines": lines}, indent=2) + "\n"
    )
    return 0 if all(line["passed"] for line in lines.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
