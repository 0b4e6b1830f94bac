"""The simulator of placement: the same arguments give the same figures, and those are what they say."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from octavo.bench.placement.bound import lru_hit_rate
from octavo.bench.placement.load import MOST, UNLOADED, doubling, p99
from octavo.bench.placement.measures import hit_rate, summary
from octavo.bench.placement.simulation import Setup, simulate
from octavo.bench.placement.trace import GRAIN, Arrival
from octavo.bench.placement.worker import WorkerSpec
from octavo.cli.main import main
from router.placement import POLICIES
from worker.scheduler.steptime import ASSUMED

SETUP = Setup(workers=4, spec=WorkerSpec(parameters=ASSUMED, blocks=400))


def conversations(count: int = 13, turns: int = 5) -> Sequence[Arrival]:
    """Each turn repeats what was said before it and adds a piece."""
    draw = random.Random(7)
    starts = [draw.uniform(0, 8) for _ in range(count)]
    made = [
        Arrival(
            at=starts[one] + 3.0 * turn,
            ids=tuple(1_000 * one + piece for piece in range(3 + turn)),
            prompt_tokens=GRAIN * (3 + turn),
            output_tokens=8,
            session=str(one).encode(),
        )
        for one in range(count)
        for turn in range(turns)
    ]
    return sorted(made, key=lambda arrival: arrival.at)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_are_equal_and_every_request_ends(policy: str) -> None:
    arrivals = conversations()
    first, second = (summary(simulate(arrivals, POLICIES[policy], SETUP)) for _ in range(2))
    assert first == second
    assert (first["requests"], first["failed"]) == (len(arrivals), 0)


def test_costs_find_what_turns_repeat_and_round_robin_does_not() -> None:
    arrivals = conversations()
    found = {name: hit_rate(simulate(arrivals, POLICIES[name], SETUP).outcomes) for name in ("cost", "round_robin")}
    bound = lru_hit_rate(arrivals, 400)
    assert found["round_robin"] < 0.6 * found["cost"]
    assert 0.9 * bound <= found["cost"] <= bound


def test_the_load_is_found_at_which_the_waits_have_doubled() -> None:
    arrivals = conversations(count=40)
    found = doubling(arrivals, POLICIES["round_robin"], SETUP)
    assert found.speed > UNLOADED
    assert found.ttft_p99 >= 2 * found.unloaded_ttft_p99 or found.speed == MOST
    assert p99(arrivals, POLICIES["round_robin"], SETUP, found.speed) == found.ttft_p99


def test_the_command_reports_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.jsonl.gz", tmp_path / "report.json"
    rows = [{"timestamp": 500 * i, "input_length": 1500, "output_length": 60, "hash_ids": [1, 2, i]} for i in range(9)]
    with gzip.open(trace, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    assert main(["bench", "placement", str(trace), "--workers", "2", "--blocks", "200", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert set(report["policies"]) == set(POLICIES)
    assert all(one["requests"] == len(rows) for one in report["policies"].values())
    assert main(["bench", "placement", str(tmp_path / "none.gz")]) == 1
    assert "none.gz" in capsys.readouterr().err
