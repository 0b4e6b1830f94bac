"""Turns and paired ratios, and the tables that are made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.peers import contest as whole
from octavo.bench.peers import table
from octavo.bench.peers.processes import ProgramFailed
from octavo.bench.peers.programs import Figures, Load, Setting
from octavo.bench.peers.rounds import compared, contest
from octavo.bench.workload import Item, Workload

MIX = Workload(name="by hand", items=(Item(prompt=(5, 6), output_tokens=2),))


def turns(log: list[str], name: str, values: list[float]) -> Callable[[], Figures]:
    left = iter(values)

    def take() -> Figures:
        log.append(name)
        return {"output_throughput": next(left)}

    return take


def probe(log: list[str]) -> Callable[[], Figures]:
    def take() -> Figures:
        log.append("probe")
        return {"read_gb_s": float(len(log))}

    return take


def test_sides_take_turns_with_a_probe_between() -> None:
    log: list[str] = []
    it = contest("peer", turns(log, "ours", [1, 2]), turns(log, "peer", [3, 4]), probe(log), rounds=2)
    assert log == ["probe", "ours", "probe", "peer", "probe"] * 2
    assert [len(pair.machine) for pair in it.pairs] == [3, 3]
    assert it.failed == ""


def test_ratios_are_paired_before_their_median_is_taken() -> None:
    log: list[str] = []
    it = contest("peer", turns(log, "ours", [10, 40, 90]), turns(log, "peer", [5, 10, 60]), probe(log), rounds=3)
    row = compared(it.pairs, ["output_throughput", "missing"])["output_throughput"]
    assert row == {"ours": 40, "theirs": 10, "ratio": 2.0, "least_ratio": 1.5, "largest_ratio": 4.0}


def test_a_side_that_fails_ends_its_contest_and_is_told_and_rounds_before_that_count() -> None:
    log: list[str] = []

    def failing() -> Figures:
        if log.count("ours") == 2:
            raise ProgramFailed("out of memory")
        return {"output_throughput": 4.0}

    it = contest("peer", turns(log, "ours", [8, 8, 8]), failing, probe(log), rounds=3)
    assert it.failed == "peer: out of memory"
    assert len(it.pairs) == 1
    assert compared(it.pairs, ["output_throughput"])["output_throughput"]["ratio"] == 2.0


class FakeSides:
    """Sides that only say figures; the one called `fails` raises."""

    def __init__(self, fails: str = ""):
        self.fails = fails

    def _or_fail(self, name: str, figures: Figures) -> Figures:
        if name == self.fails:
            raise ProgramFailed(f"{name} ended | with status 1")
        return figures

    def machine(self) -> Figures:
        return {"read_gb_s": 20.0}

    def ours(self, *, loads: bool) -> Figures:
        return {**ENGINE, "output_throughput": 100.0, "at": at(100.0) if loads else {}}

    def theirs(self, peer: str) -> Figures:
        known = {"openvino": {"output_throughput": 60.0, "at": at(60.0)}, "vllm": {"output_throughput": 50.0}}
        return self._or_fail(f"{peer}'s engine", {**ENGINE, **known[peer]})

    def served(self, side: str) -> Figures:
        busy = {"client": 0.5, "router": 0.5, "worker": 1.0}
        cost = {"cores_busy": busy, "cpu_share": {role: cores / 2 for role, cores in busy.items()}}
        return self._or_fail(f"{side}'s server", {"at": {level: {**run, **cost} for level, run in at(90.0).items()}})

    def both_ways(self) -> Figures:
        return {**self.served("octavo"), "engine_at": at(100.0)}


ENGINE = {"decode_tokens_per_s": 5.0, "ttft_ms": 3.0, "start_s": 1.0}


def at(rate: float) -> dict[str, Figures]:
    return {str(concurrency): dict.fromkeys(whole.LOAD, rate * concurrency) for concurrency in (1, 8)}


def report(fails: str = "") -> dict[str, Any]:
    """A whole run."""
    here = Path("/nowhere")
    loads = (Load(concurrency=1, requests=16), Load(concurrency=8, requests=96))
    setting = Setting(home=here, scripts=here, workload=here, requests=96, repeats=2, loads=loads)
    plan = whole.Plan(peers=("openvino", "vllm"), parts=whole.PARTS, rounds=2)
    return whole.measure(FakeSides(fails), setting, plan, MIX)


def test_a_run_sets_us_beside_each_peer_and_each_server() -> None:
    made = report()
    assert [(it["peer"], it["compared"]["output_throughput"]["ratio"]) for it in made["offline"]] == [
        ("openvino", 1.6667), ("vllm", 2.0),
    ]  # fmt: skip
    assert made["offline"][0]["at"]["8"]["median_tpot_ms"]["ours"] == 800.0
    (serving,) = made["serving"]
    assert serving["at"]["8"]["output_throughput"]["ratio"] == 1.0
    assert serving["share_of_engine"] == {"1": [0.9, 0.9], "8": [0.9, 0.9]}
    text = table.markdown(made)
    assert "client 0.50 (25%), router 0.50 (25%), worker 1.00 (50%) | 90%" in text
    assert "| **2.00** (2.00-2.00) |" in text


@pytest.mark.parametrize(("fails", "part"), [("vllm's engine", "offline"), ("vllm's server", "serving")])
def test_a_peer_that_fails_has_a_row_and_the_rest_goes_on(fails: str, part: str) -> None:
    made = report(fails)
    failed = [(name, it["peer"]) for name in ("offline", "serving") for it in made[name] if it["failed"]]
    assert failed == [(part, "vllm")]
    assert made["offline"][0]["compared"]["output_throughput"]["ratio"] == 1.6667
    rows = [line for line in table.markdown(made).splitlines() if "failed" in line]
    assert len(rows) == 1
    assert "vllm: failed" in rows[0]


@pytest.mark.parametrize("fails", ["", "vllm's engine", "vllm's server", "openvino's engine", "octavo's server"])
def test_every_table_has_as_many_cells_in_each_row_as_in_its_head(fails: str) -> None:
    for block in table.markdown(report(fails)).split("\n\n"):
        assert len({line.count("|") for line in block.splitlines()}) == 1
