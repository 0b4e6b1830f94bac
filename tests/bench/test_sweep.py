"""The sweep's steps are what they are said to be, and what is drawn of them is the table."""

import xml.etree.ElementTree as ET

import pytest

from octavo.bench import plot, sweep
from octavo.bench.sweep import Bench, Point
from tests.fakes.executor import FakeExecutor

VOCAB = 97


def bench(blocks: int = 64) -> tuple[Bench, FakeExecutor]:
    executor = FakeExecutor(num_blocks=blocks, slots=8, vocab_size=VOCAB, eos=(), depth=0)
    return Bench(executor, blocks, vocab_size=VOCAB, step_tokens=32), executor


def test_a_point_is_so_many_equal_steps_over_kv_that_was_written() -> None:
    """The executor itself fails where a step looks at KV that nobody wrote, or that belongs to other tokens."""
    it, executor = bench()
    point = Point(axis="batch", batch=3, context=40, chunk=2)
    assert len(it.seconds(point, repeats=4)) == 4
    steps = [plan for plan in executor.plans if plan.samples]
    assert len(steps) == 5
    for plan in steps:
        assert [(chunk.slot, chunk.start, chunk.length) for chunk in plan.chunks] == [
            (slot, 40, 2) for slot in range(3)
        ]
        assert [(row.slot, row.position) for row in plan.samples] == [(slot, 42) for slot in range(3)]


def test_points_may_come_in_any_order() -> None:
    it, _ = bench()
    for context, batch in ((20, 4), (100, 2), (0, 1), (33, 4), (100, 1)):
        it.seconds(Point(axis="context", batch=batch, context=context, chunk=1), repeats=1)


def test_a_point_that_needs_more_blocks_than_there_are_is_told_and_left_out() -> None:
    it, _ = bench(blocks=20)
    said: list[str] = []
    wanted = list(sweep.points((1, 2, 8), (16, 64), (4,), at=(32, 2)))
    rows = sweep.measure(it, wanted, repeats=1, rounds=2, progress=said.append)
    assert [(row["axis"], row["batch"], row["context"]) for row in rows] == [
        ("batch", 1, 32), ("batch", 2, 32), ("context", 1, 16), ("context", 1, 64), ("context", 2, 16), ("context", 2, 64),
        ("chunk", 1, 0),
    ]  # fmt: skip
    assert said == ["1 points do not fit into the KV cache"]
    assert [row["growth"] is None for row in rows] == [True, False, True, False, True, False, True]


def test_growth_is_the_power_between_neighbours() -> None:
    assert sweep.growth([1, 2, 8], [5.0, 10.0, 640.0]) == [None, pytest.approx(1.0), pytest.approx(3.0)]
    assert sweep.growth([1, 2], [5.0, 5.0]) == [None, pytest.approx(0.0)]


def test_the_plot_is_a_document_with_a_mark_for_each_point_inside_its_panel() -> None:
    curves = (
        plot.Curve(label="a < b", xs=(1, 10, 100), ys=(3.0, 4.0, 90.0)),
        plot.Curve(label="c", xs=(5,), ys=(7.0,)),
    )
    panel = plot.Panel(title="t & u", x="x", y="ms", curves=curves)
    root = ET.fromstring(plot.svg([panel, panel]))
    marks = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(marks) == 8
    assert all(0 < float(mark.get("cx", "")) < 300 and 0 < float(mark.get("cy", "")) < 240 for mark in marks)
    heights = [float(mark.get("cy", "")) for mark in marks[:3]]
    assert heights == sorted(heights, reverse=True)
    assert "a < b" in {each.text for each in root.iter()}
