"""Four processes on one store, some of them killed in the middle: no minute has more than its limit, and nothing is charged twice."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from router.tenancy.records import Charge
from router.tenancy.sqlite.store import SqliteStore
from router.tenancy.store import UsageQuery
from tests.conftest import ROOT
from tests.fakes.tenancy import NOW

CHILD = ROOT / "tests" / "fakes" / "child" / "store_client.py"
SPEED = 40.0  # minutes pass in seconds
SECONDS = 4.0
BOUND = 60.0


def begun(path: Path, name: str, zero: float, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, str(CHILD), str(path), name, str(NOW), str(SPEED), str(seconds), str(zero)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


def heard(child: "subprocess.Popen[str]") -> list[list[Any]]:
    """Whole lines; the last of a killed process may be none."""
    out, _ = child.communicate(timeout=BOUND)
    return [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]


async def _until_granted(path: Path, seconds: float) -> None:
    """Returns once some requests have ended: whatever is killed now is killed in the middle."""
    store = SqliteStore(path)
    try:
        async with asyncio.timeout(seconds):
            while len(await store.usage(UsageQuery())) < 10:
                await asyncio.sleep(0.02)
    finally:
        await store.aclose()


async def _ledger(path: Path, now: float) -> dict[str, Charge]:
    """All of it, once nothing lives."""
    store = SqliteStore(path, clock=lambda: now)
    try:
        await store.sweep()
        lines = await store.usage(UsageQuery(limit=100_000))
        assert len({line.charge.id for line in lines}) == len(lines)
        return {line.charge.id: line.charge for line in lines}
    finally:
        await store.aclose()


def test_limits_and_ledger_hold_over_processes_that_are_killed(tmp_path: Path) -> None:
    path, zero = tmp_path / "octavo.db", time.monotonic()
    children = [begun(path, f"p{number}", zero, SECONDS) for number in range(4)]
    asyncio.run(_until_granted(path, BOUND))
    for child in children[:2]:
        child.kill()
    children += [begun(path, f"q{number}", zero, SECONDS / 2) for number in range(2)]
    lines = [line for child in children for line in heard(child)]
    assert [child.returncode for child in children] == [-9, -9, 0, 0, 0, 0]
    granted, abandoned = ({line[1] for line in lines if line[0] == kind} for kind in ("granted", "abandoned"))
    ledger = asyncio.run(_ledger(path, NOW + 10 * SPEED * BOUND))
    times = sorted(charge.started for charge in ledger.values())
    assert max(sum(start <= at < start + 60 for at in times) for start in times) <= 60
    assert len(times) > 60
    for name, made in ((line[1], line[2]) for line in lines if line[0] == "settled"):
        assert (ledger[name].output_tokens, ledger[name].finish) == (made, "stop")
    killed = {name for name in granted | ledger.keys() if name.startswith(("p0", "p1"))}
    assert granted - abandoned - killed <= ledger.keys()
    assert ledger.keys() <= granted | killed
    assert {name for name, charge in ledger.items() if charge.finish == "lost"} <= killed
    assert not abandoned & ledger.keys()
