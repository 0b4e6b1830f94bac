"""Which lines of an acceptance run are shown, and what is written of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.accept import fleet_cost
from tests.accept.run import Line, accept, chosen


def line(number: str) -> Line:
    return Line(number=number, claim="it is so", show=lambda: {"passed": True})


LINES = [line("1a"), line("1b"), line("2")]


@pytest.mark.parametrize(("numbers", "shown"), [([], ["1a", "1b", "2"]), (["2"], ["2"]), (["2", "1a"], ["1a", "2"])])
def test_the_lines_that_are_named_or_all_are_shown(numbers: list[str], shown: list[str]) -> None:
    assert [each.number for each in chosen(LINES, numbers)] == shown


@pytest.mark.parametrize("numbers", [["3"], ["--help"], ["1a", "1c"]])
def test_a_line_that_is_not_there_is_refused_and_does_not_pass(
    numbers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        chosen(LINES, numbers)
    assert end.value.code == 2
    assert f"no line {numbers[-1]}; there are: 1a, 1b, 2" in capsys.readouterr().err


def told(folder: Path) -> dict[str, Any]:
    return {each["line"]: each for each in json.loads((folder / "name.json").read_text())["lines"]}


def test_a_line_shown_alone_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    counted = Line(number="2", claim="it is so", show=lambda: {"passed": True, "figure": 7})
    assert accept("name", [*LINES[:2], counted], folder=tmp_path) == 0
    again = Line(number="1a", claim="it is so no more", show=lambda: {"passed": False})
    assert accept("name", [again, LINES[1], LINES[2]], ["1a"], folder=tmp_path) == 1
    lines = told(tmp_path)
    assert list(lines) == ["1a", "1b", "2"]
    assert (lines["1a"]["passed"], lines["2"]["figure"]) == (False, 7)
    assert all(each["commit"] and each["machine"] for each in lines.values())


def test_a_line_that_raises_has_failed_with_its_reason_and_those_after_it_go_on(tmp_path: Path) -> None:
    def raises() -> Mapping[str, Any]:
        raise TimeoutError("of 64 streams 55 began")

    broken = Line(number="1a", claim="it is so", show=raises)
    assert accept("name", [broken, LINES[1]], folder=tmp_path) == 1
    lines = told(tmp_path)
    assert not lines["1a"]["passed"]
    assert "of 64 streams 55 began" in lines["1a"]["error"]
    assert lines["1b"]["passed"]


def test_the_router_cost_is_judged_by_its_figures() -> None:
    found = {"hashing": [{"us_per_block": 0.7}], "index": [{"rss_mb": 60.0}, {"rss_mb": 62.0}]}
    assert fleet_cost.judge_memory({"memory": found}) == {"hashing_passed": True, "index_passed": True}
    grown = {"hashing": [{"us_per_block": 1.1}], "index": [{"rss_mb": 60.0}, {"rss_mb": 90.0}]}
    assert fleet_cost.judge_memory({"memory": grown}) == {"hashing_passed": False, "index_passed": False}
