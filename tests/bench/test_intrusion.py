"""Which gaps count as intruded, and a run against the real HTTP edge."""

import pytest

from octavo.bench import intrusion
from octavo.bench.intrusion import Gaps, Shape
from octavo.bench.metrics import Timeline
from shared.errors import Internal
from tests.fakes.edges import http_edge
from tests.fakes.service import FakeService


def timeline(start: float, *pieces: float) -> Timeline:
    return Timeline(start=start, pieces=pieces, end=pieces[-1], prompt_tokens=1, output_tokens=len(pieces))


def test_gaps_of_streams_alone_are_idle_and_those_that_overlap_a_prompt_are_intruded() -> None:
    alone = [timeline(0.0, 1.0, 3.0, 4.0), timeline(0.0, 2.0, 4.5)]  # 1-3 before the other stream has begun
    streams = [timeline(10.0, 13.0, 14.0, 16.0, 19.0, 20.0), timeline(10.0, 12.0, 14.5, 18.0, 18.5)]
    prompts = [timeline(15.0, 15.5, 15.6), timeline(18.2, 18.4, 19.9)]
    gaps = intrusion.split(alone, streams, prompts)
    assert sorted(gaps.idle) == [1.0, 2.5]  # 3-4, 2-4.5
    # 18-18.5, 14-16, 16-19, 14.5-18; 19-20 is after the prompt's first token
    assert sorted(gaps.intruded) == [0.5, 2.0, 3.0, 3.5]


def test_figures_are_percentiles_in_milliseconds_and_the_ratio_of_the_worst() -> None:
    told = intrusion.figures(Gaps(idle=(0.01, 0.01, 0.02), intruded=(0.03, 0.06)))
    assert (told["idle_gaps"], told["intruded_gaps"]) == (3, 2)
    assert (told["idle_p50_itl_ms"], told["intruded_p50_itl_ms"]) == (10.0, 45.0)
    assert told["p99_ratio"] == pytest.approx(59.7 / 19.8, abs=0.001)


async def test_streams_that_end_before_a_prompt_arrives_are_no_figure() -> None:
    shape = Shape(streams=2, output_tokens=1, prompt_tokens=8)
    async with http_edge(FakeService()) as edge:
        with pytest.raises(Internal, match="too short"):
            await intrusion.measure(edge.url, model="tiny", shape=shape, progress=lambda line: None)
