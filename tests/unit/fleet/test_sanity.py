"""What of a report is believed."""

import math

import pytest

from router.fleet.sanity import believed
from tests.fakes.scripted_worker import load_report

MEASURED = (
    "predicted_step_ms",
    "prefill_tokens_per_s",
    "step_us_per_sequence",
    "step_us_per_context_token",
    "step_us_per_pair",
)


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-30])
def test_a_measure_that_is_none_counts_as_not_measured_and_the_rest_is_kept(name, value):
    load = load_report(running=3, **{name: value})
    assert believed(load) == load_report(running=3)


def test_a_report_that_makes_sense_is_the_same_object():
    """Views are kept by it."""
    load = load_report(**dict.fromkeys(MEASURED, 1e30))
    assert believed(load) is load
