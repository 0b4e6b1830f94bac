"""The simulator of placement: the same arguments give the same figures, and those are what they say."""

import gzip
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from octavo.bench.placement.bound import lru_hit_rate
from octavo.bench.placement.load import MOST, UNLOADED, doubling, p99
from octavo.bench.placement.measures import hit_rate, summary
from octavo.bench.placement.simulation import Setup, simulate
from octavo.bench.placement.trace import GRAIN, Arrival, mooncake
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


ROW = {"timestamp": 0, "input_length": 1500, "output_length": 60, "hash_ids": [1, 2, 3]}
LINE = json.dumps(ROW)


def test_a_trace_is_read_gzipped_or_not(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "plain.jsonl", tmp_path / "zipped.jsonl.gz"
    plain.write_text(f"{LINE}\n{LINE}\n")
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert mooncake(plain) == mooncake(zipped)
    assert len(mooncake(plain)) == 2
    assert len(mooncake(plain, limit=1)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{LINE}\nhello\n".encode(), "line 2: Expecting value"),
        (b'{"timestamp": 1}\n', "line 1 has no 'hash_ids'"),
        (b"[1]\n", "line 1: "),
        (json.dumps(ROW | {"hash_ids": []}).encode(), "line 1: hash_ids"),
        (json.dumps(ROW | {"hash_ids": ["a"]}).encode(), "line 1: hash_ids"),
        (json.dumps(ROW | {"input_length": -1}).encode(), "line 1: hash_ids"),
        (json.dumps(ROW | {"output_length": "60"}).encode(), "line 1: hash_ids"),
        (json.dumps(ROW | {"timestamp": math.nan}).encode(), "line 1: its timestamp"),
        (f"{json.dumps(ROW | {'timestamp': 9})}\n{LINE}\n".encode(), "line 2: its timestamp is before"),
        (b"\xff\xfe\n", "decode"),
        (gzip.compress(LINE.encode(), mtime=0)[:-9], "end-of-stream"),
        (gzip.compress(LINE.encode(), mtime=0)[:12] + b"\xff" * 40, ""),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line_that_names_where(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(content)
    assert main(["bench", "placement", str(trace)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"octavo: {trace} is no trace: ")
    assert said in line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--blocks", "7"], "7 blocks leave nothing for some of 8 workers"),
        (["--blocks", "8"], "none of the requests fits into a worker's 4 blocks of 16 tokens"),
        (["--blocks", "8", "--doubling", "cost"], "none of the requests fits"),
        (["--step-times", "trace"], "has no step times of a worker"),
        (["--step-times", "none"], "No such file"),
    ],
)
def test_what_leaves_nothing_to_simulate_is_told_in_one_line(
    flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace").write_text(LINE)
    assert main(["bench", "placement", "trace", *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "inf", "nan"])
def test_a_speed_that_is_none_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "placement", "trace", "--speed", speed])
    assert f"argument --speed: {speed!r} is not " in capsys.readouterr().err
