"""The bench's arithmetic against timelines made by hand."""

import random

import numpy
import pytest

from octavo.bench.metrics import Timeline, percentile, summary


def timeline(start: float, *pieces: float, output: int, prompt: int = 10) -> Timeline:
    return Timeline(start=start, pieces=pieces, end=pieces[-1], prompt_tokens=prompt, output_tokens=output)


def test_one_request_by_hand() -> None:
    one = timeline(100.0, 100.5, 100.6, 100.8, output=3)
    assert one.ttft == pytest.approx(0.5)
    assert one.tpot == pytest.approx(0.15)
    assert one.itls == pytest.approx((0.1, 0.2))


def test_two_overlapping_requests_by_hand() -> None:
    figures = summary(
        [timeline(0.0, 1.0, 1.5, 2.0, output=3, prompt=100), timeline(1.0, 1.2, 4.0, output=2, prompt=50)]
    )
    assert figures == {
        "completed": 2,
        "duration_s": 4.0,
        "total_input_tokens": 150,
        "total_output_tokens": 5,
        "request_throughput": 0.5,
        "output_throughput": 1.25,
        "total_token_throughput": 38.75,
        "mean_ttft_ms": 600.0,
        "median_ttft_ms": 600.0,
        "p99_ttft_ms": 992.0,  # 200 + 0.99 * (1000 - 200)
        "mean_tpot_ms": 1650.0,  # 500 and 2,800
        "median_tpot_ms": 1650.0,
        "p99_tpot_ms": 2777.0,
        "mean_itl_ms": pytest.approx(1266.667),  # 500, 500 and 2,800
        "median_itl_ms": 500.0,
        "p99_itl_ms": 2754.0,  # 500 + 0.98 * 2300
    }


def test_several_tokens_in_one_piece_lower_tpot_and_not_itl() -> None:
    one = timeline(0.0, 1.0, 2.0, output=5)
    assert one.tpot == pytest.approx(0.25)
    assert one.itls == (1.0,)


def test_requests_of_one_token_have_neither_tpot_nor_itl() -> None:
    figures = summary([timeline(0.0, 1.0, output=1)])
    assert figures["mean_tpot_ms"] is None
    assert figures["p99_itl_ms"] is None
    assert figures["mean_ttft_ms"] == 1000.0


@pytest.mark.parametrize("count", [1, 2, 7, 100, 101])
@pytest.mark.parametrize("percent", [0, 1, 50, 99, 100])
def test_percentiles_are_numpys(count: int, percent: float) -> None:
    values = random.Random(count).choices(range(1000), k=count)
    assert percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))
