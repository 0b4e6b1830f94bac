"""Which lines of an acceptance run are shown."""

import pytest

from tests.accept.run import Line, chosen


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
