"""The tables of docs/performance.md come from the reports alone."""

from typing import Any

from tools import figures

RUN = {
    "streams": 8,
    "prompt_tokens": 2000,
    "intruder_ttft_ms": [900.0, 700.0],
    "idle_p50_itl_ms": 12.0,
    "idle_p99_itl_ms": 15.0,
    "intruded_p50_itl_ms": 25.0,
    "intruded_p99_itl_ms": 36.0,
    "p99_ratio": 2.4,
}
REPORT: dict[str, Any] = {"machine": {"cpu": "A CPU", "cores": 2}, "commit": "0123456789abcdef", "runs": [RUN]}
PAGE = """# Page

<!-- figures: intrusion, from docs/results/intrusion.json -->

Text.

<!-- figures: sweep, from docs/results/sweep.json -->
"""


def test_a_table_stands_where_its_report_belongs_and_names_its_commit() -> None:
    page = figures.filled(PAGE, {"intrusion": REPORT})
    assert "| 8 | 2000 | 12.0 | 15.0 | 25.0 | 36.0 | **2.40** | 700-900 |" in page
    assert "A CPU, 2 cores; commit 0123456789." in page
    assert page.count("Text.") == 1
    assert page.endswith("<!-- figures: sweep, from docs/results/sweep.json -->\n")


def test_a_table_is_replaced_as_a_whole_and_the_same_report_changes_nothing() -> None:
    once = figures.filled(PAGE, {"intrusion": REPORT})
    assert figures.filled(once, {"intrusion": REPORT}) == once
    later = figures.filled(once, {"intrusion": {**REPORT, "runs": [{**RUN, "p99_ratio": 9.0}]}})
    assert "**9.00**" in later
    assert "**2.40**" not in later
    assert later.count("Text.") == 1
