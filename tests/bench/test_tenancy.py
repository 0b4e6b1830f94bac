"""`octavo bench tenancy` measures what it says."""

import json
from pathlib import Path

from octavo.cli.main import main


def test_the_report_tells_the_cost_and_the_waits(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    arguments = ["bench", "tenancy", "--requests", "60", "--concurrency", "4", "--tenants", "3", "--json", str(out)]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert (report["requests"], report["concurrency"], report["tenants"]) == (60, 4, 3)
    with_store, without = report["with_store"], report["without_store"]
    assert report["tenancy_cpu_us_per_request"] == with_store["cpu_us_per_request"] - without["cpu_us_per_request"]
    assert all(with_store[name] > 0 for name in ("cpu_us_per_request", "reserve_ms_p99", "settle_ms_median"))
