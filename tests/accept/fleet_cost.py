"""What the router itself costs: parts of `octavo bench router`, each in a process of its own, beside what is asked of them."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.accept.run import ROOT

PART_SECONDS = 300  # each part takes less than four minutes
DECISION_US = {"4k": 200.0, "128k": 2_000.0}
HASHING_US, INDEX_GROWTH = 1.0, 1.05
EVENTS, TOKENS, SESSION_TOKENS = 15_000.0, 40_000.0, 100_000.0  # a second
TTFT_P50_MS, TTFT_P99_MS = 4.0, 20.0
STREAMS_GROWTH = 0.02  # of resident memory, from the middle third of the time to the last
Found = Mapping[str, Any]
Judged = Mapping[str, bool]


def _measured(*parts: str) -> Found:
    """What the bench tells of these parts, by their names."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = (sys.executable, "-m", "octavo", "bench", "router", "--parts", *parts, "--json", str(report))
        subprocess.run(command, cwd=ROOT, check=True, timeout=PART_SECONDS * len(parts))
        found: Found = json.loads(report.read_text())["parts"]
        return found


def _shows(judge: Callable[[Found], Judged], *parts: str) -> Callable[[], Found]:
    def show() -> Found:
        began, found = time.monotonic(), _measured(*parts)
        judged = judge(found)
        return {"passed": all(judged.values()), **judged, **found, "seconds": round(time.monotonic() - began, 1)}

    return show


def judge_decision(found: Found) -> Judged:
    """4k and 128k tokens, on 64 workers."""
    return {f"{size}_passed": found["decision"][size]["p50_us"] < most for size, most in DECISION_US.items()}


def judge_memory(found: Found) -> Judged:
    """A block's hash, and the index after a tenth and all of the prompts."""
    tenth, whole = (look["rss_mb"] for look in found["memory"]["index"])
    return {
        "hashing_passed": all(each["us_per_block"] <= HASHING_US for each in found["memory"]["hashing"]),
        "index_passed": whole <= INDEX_GROWTH * tenth,
    }


def judge_rates(found: Found) -> Judged:
    """Events, tokens and Session's tokens a second."""
    return {
        "events_passed": found["events"]["events_per_s"] >= EVENTS,
        "tokens_passed": found["tokens"]["tokens_per_s"] >= TOKENS,
        "session_passed": found["session"]["tokens_per_s"] >= SESSION_TOKENS,
    }


def judge_ttft(found: Found) -> Judged:
    """What is added to the first token."""
    first = found["ttft"]
    return {
        "p50_passed": first["added_ttft_p50_ms"] < TTFT_P50_MS,
        "p99_passed": first["added_ttft_p99_ms"] < TTFT_P99_MS,
    }


def judge_streams(found: Found) -> Judged:
    """Resident memory."""
    return {"memory_passed": found["streams"]["growth"] <= STREAMS_GROWTH}


def judge_profile(found: Found) -> Judged:
    """That there is a figure for each part."""
    return {"parts_passed": bool(found["profile"]["by_part_us"])}


decision = _shows(judge_decision, "decision")
memory = _shows(judge_memory, "memory")
rates = _shows(judge_rates, "events", "tokens", "session")
first_tokens = _shows(judge_ttft, "tokens", "ttft")  # at half of what `tokens` finds
streams = _shows(judge_streams, "streams")
profile = _shows(judge_profile, "profile")
