"""What the simulator says of placement, beside real routers, streams, schedulers and caches; and the command that tells both."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from octavo.bench.placement import streams
from octavo.bench.placement.measures import hit_rate
from octavo.bench.placement.simulation import Setup, simulate
from octavo.bench.placement.trace import GRAIN, Arrival
from octavo.bench.placement.worker import WorkerSpec
from octavo.cli.main import main
from router.placement import POLICIES
from worker.scheduler.steptime import ASSUMED

QUICK = tuple(each / 20 for each in ASSUMED)
CONVERSATIONS, TURNS, PAUSE = 3, 4, 1.0


def conversations(first_tokens: int = 2) -> Sequence[Arrival]:
    """One question after the other, each with what was said before it."""
    return [
        Arrival(
            at=turn * PAUSE + 0.3 * one,
            ids=tuple(1_000 * one + piece for piece in range(first_tokens + turn)),
            prompt_tokens=GRAIN * (first_tokens + turn),
            output_tokens=4,
        )
        for turn in range(TURNS)
        for one in range(CONVERSATIONS)
    ]


@pytest.mark.parametrize("routers", [1, 2])
async def test_real_streams_find_cached_what_simulated_ones_find(routers: int) -> None:
    arrivals, setup = conversations(), Setup(workers=2, routers=routers, spec=WorkerSpec(parameters=QUICK, blocks=400))
    found = await streams.replay(arrivals, "cost", setup)
    assert found.failures == []
    assert sorted(each.prompt_tokens for each in found.served) == sorted(each.prompt_tokens for each in arrivals)
    assert {each.output_tokens for each in found.served} == {4}
    simulated = hit_rate(simulate(arrivals, POLICIES["cost"], setup).outcomes)
    assert simulated > 0.5
    assert found.summary()["hit_rate"] == pytest.approx(simulated, rel=0.05)


async def test_caches_that_hold_nothing_for_long_find_as_little_over_real_streams() -> None:
    setup = Setup(workers=1, spec=WorkerSpec(parameters=QUICK, blocks=24))
    found = await streams.replay(conversations(), "cost", setup)
    assert hit_rate(found.served) == pytest.approx(
        hit_rate(simulate(conversations(), POLICIES["cost"], setup).outcomes), rel=0.05
    )
    assert hit_rate(found.served) < 0.5


async def test_requests_that_no_worker_can_take_are_told_as_failed() -> None:
    setup = Setup(workers=1, spec=WorkerSpec(parameters=QUICK, blocks=400, max_model_len=3 * GRAIN))
    found = await streams.replay(conversations()[:6], "cost", setup)
    assert len(found.served) == CONVERSATIONS
    assert found.summary()["failed"] == CONVERSATIONS
    assert all(each.startswith("context_length_exceeded") for each in found.failures)


def trace_of(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def rows(count: int = 9) -> list[dict[str, Any]]:
    return [
        {"timestamp": 100 * i, "input_length": 1500, "output_length": 60, "hash_ids": [1, 2, i]} for i in range(count)
    ]


def test_the_command_tells_what_real_streams_found_of_the_same_slice(tmp_path: Path) -> None:
    trace, out = trace_of(tmp_path / "trace.jsonl.gz", rows()), tmp_path / "report.json"
    flags = ("--workers", "2", "--blocks", "200", "--policies", "cost", "--over-grpc", "0.5", "--json", str(out))
    assert main(["bench", "placement", trace, *flags]) == 0
    told = json.loads(out.read_text())["policies"]["cost"]
    assert told["requests"] == told["over_grpc"]["requests"] == 5
    assert told["over_grpc"]["failed"] == 0
    assert told["over_grpc"]["by_simulated"] == pytest.approx(
        told["over_grpc"]["hit_rate"] / fmean(told["over_grpc"]["simulated_hit_rates"])
    )


def test_the_command_looks_for_the_load_at_which_a_policy_waits_twice_as_long(tmp_path: Path) -> None:
    trace, out = trace_of(tmp_path / "trace.jsonl.gz", rows(60)), tmp_path / "report.json"
    flags = ("--workers", "2", "--blocks", "40", "--policies", "cost", "round_robin", "--doubling", "round_robin")
    assert main(["bench", "placement", trace, *flags, "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["doubling"]["policy"] == "round_robin"
    assert told["speed"] == told["doubling"]["speed"]
    ttft = {name: policy["ttft_p99"] for name, policy in told["policies"].items()}
    assert ttft["round_robin"] == told["doubling"]["ttft_p99"]
    assert told["ttft_p99_by"] == {"round_robin": ttft["cost"] / ttft["round_robin"]}


@pytest.mark.parametrize("more", [(), ("--over-grpc", "1"), ("--doubling", "cost")])
def test_a_trace_without_requests_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]):
    assert main(["bench", "placement", trace_of(tmp_path / "trace.jsonl.gz", []), *more]) == 1
    assert "no request" in capsys.readouterr().err


def test_a_load_is_given_or_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "placement", str(tmp_path), "--speed", "2", "--doubling", "cost"])
