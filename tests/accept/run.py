"""How an acceptance run asks its questions: pytest selections and commands, each timed, and told in one JSON file."""

import json
import os
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo.bench import machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
LIMIT_SECONDS = 3600
FULL = {"OCTAVO_JUDGE": "full"}  # every prompt before the judge, not the sample that fits `make test`


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of an issue's "Must show": what it claims, and what shows it. `show` gives figures with "passed" among them."""

    number: str
    claim: str
    show: Callable[[], Mapping[str, Any]]


def command(*arguments: str) -> Mapping[str, Any]:
    """A command's verdict; the end of what it printed where it failed."""
    began, environ = time.monotonic(), {**os.environ, **FULL}
    done = subprocess.run(
        arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    told = {} if done.returncode == 0 else {"output": (done.stdout + done.stderr)[-3000:]}
    seconds = round(time.monotonic() - began, 1)
    return {"passed": done.returncode == 0, "command": " ".join(arguments), "seconds": seconds, **told}


def _counts(report: Path) -> dict[str, Any]:
    """What pytest's XML tells. A skipped test shows nothing, and is named."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    totals = {
        key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    skipped = [
        case.get("name") for suite in suites for case in suite.iter("testcase") if case.find("skipped") is not None
    ]
    return {**totals, "skipped_tests": skipped}


def tests(*selection: str) -> Callable[[], Mapping[str, Any]]:
    """Shows that these tests pass, all of them and at least one."""

    def show() -> Mapping[str, Any]:
        with TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            told = command(sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *selection)
            counts = _counts(report) if report.exists() else {}
        shown = bool(told["passed"]) and counts.get("tests", 0) > counts.get("skipped", 0)
        what = "pytest " + " ".join(selection)
        return {**told, "command": what, **counts, "passed": shown and not counts.get("skipped")}

    return show


def chosen(lines: Sequence[Line], numbers: Sequence[str]) -> Sequence[Line]:
    """Those of these numbers, or all. Ends the process with status 2 where there is none of a number: no line at all would pass."""
    there = [line.number for line in lines]
    if strange := [number for number in numbers if number not in there]:
        sys.stderr.write(f"no line {', '.join(strange)}; there are: {', '.join(there)}\n")
        raise SystemExit(2)
    return [line for line in lines if not numbers or line.number in numbers]


def _shown(line: Line) -> dict[str, Any]:
    """A line's figures. One that raises is not shown, and says why; those after it go on."""
    print(f"{line.number}: {line.claim}", flush=True)
    try:
        figures = line.show()
    except Exception as error:  # noqa: BLE001 - told with the line
        figures = {"passed": False, "error": "".join(traceback.format_exception(error))[-3000:]}
    print(f"   {'passed' if figures['passed'] else 'FAILED'} {figures.get('seconds', '')}", flush=True)
    about = {"commit": machine.commit(), "machine": machine.machine(), "versions": machine.versions()}
    return {"line": line.number, "claim": line.claim, **about, **figures}


def _kept(path: Path) -> dict[str, Any]:
    """What an earlier run has shown, by the lines' numbers."""
    return {each["line"]: each for each in json.loads(path.read_text())["lines"]} if path.exists() else {}


def accept(name: str, lines: Sequence[Line], numbers: Sequence[str] = (), folder: Path = RESULTS) -> int:
    """Shows the lines of these numbers, or all, writes them to NAME.json, and gives the exit status. Lines that are not asked for stay
    there as an earlier run has left them: each names its own commit and machine.
    """
    path, shown = folder / f"{name}.json", {}
    asked = chosen(lines, numbers)
    for line in asked:
        shown[line.number] = _shown(line)
        every = {**_kept(path), **shown}
        told = [every[each.number] for each in lines if each.number in every]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"name": name, "lines": told}, indent=2) + "\n")
    print(f"written to {path}")
    return 0 if all(line["passed"] for line in shown.values()) else 1
