"""Where the router's processor time goes, by part, from samples of its stack that py-spy takes while it carries all that it can.

A sample belongs to the innermost frame that is of one of the parts below; the parts' shares times the processor time that the system
counted for a token are microseconds a token.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from octavo.bench.router.rig import Rig

HERTZ = 250

# The first that occurs in a frame's file.
PARTS: Mapping[str, str] = {
    "router/text/": "text: detokenizing, stop strings",
    "router/dispatch/": "dispatch: flights, delivery",
    "router/placement/": "placement",
    "router/fleet/": "fleet: workers' frames",
    "shared/wire/": "wire: frames to types",
    "router/edge/http/": "HTTP edge: events",
    "router/edge/grpc/": "gRPC edge: messages",
    "router/edge/": "edges, shared",
    "router/metrics": "metrics",
    "prometheus_client": "metrics",
    "router/tenancy/": "tenancy",
    "uvicorn": "uvicorn, starlette",
    "starlette": "uvicorn, starlette",
    "fastapi": "uvicorn, starlette",
    "grpc/": "gRPC's own",
    "asyncio/": "asyncio",
}
REST = "event loop, sockets, threads"


def recorded(on: Rig, seconds: int) -> list[str]:
    """Stacks as py-spy tells them: outermost frame first, `;` between, a count behind.

    Raises FileNotFoundError where it is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stacks"
        beside = Path(sys.executable).with_name("py-spy")
        command = [str(beside) if beside.exists() else "py-spy", "record", "--nonblocking", "--full-filenames"]
        asked = f"--pid {on.router.pid} --rate {HERTZ} --duration {seconds} --format raw".split()
        subprocess.run([*command, *asked, "--output", str(out)], check=True, capture_output=True)
        return out.read_text().splitlines()


def part_of(frame: str) -> str | None:
    """The part that a frame belongs to."""
    return next((part for mark, part in PARTS.items() if mark in frame), None)


def shares(stacks: Iterable[str]) -> dict[str, float]:
    """Each part's share of all samples, the largest first."""
    found: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        parts = (part_of(frame) for frame in reversed(stack.split(";")))
        found[next((part for part in parts if part), REST)] += int(count)
    total = found.total() or 1
    return {part: count / total for part, count in found.most_common()}
