"""Tenancy's "Must show", line by line: `make accept NAME=tenancy`. Give numbers to show only those: python -m tests.accept.tenancy 2a 3."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.bench import tenancy as bench
from tests.accept import flood, limits, shares, timing
from tests.accept.run import Line, accept, tests

MOST_CPU_US = 300.0


def _overhead() -> Mapping[str, Any]:
    import asyncio

    runs = [
        asyncio.run(bench.measure(bench.Shape(requests=4_000, concurrency=concurrency, tenants=100), lambda _: None))
        for concurrency in (1, 8, 64)
    ]
    worst = max(run["tenancy_cpu_us_per_request"] for run in runs)
    return {"passed": worst < MOST_CPU_US, "worst_cpu_us_per_request": worst, "runs": runs}


LINES = (
    Line(number="1", claim="Four routers, two killed: no minute over its limit, the ledger exact", show=limits.show),
    Line(
        number="1b",
        claim="Several processes on one store: no minute has more than its limit, and the ledger is exact, kills or not",
        show=tests(
            "tests/unit/tenancy",
            "tests/integration/test_tenancy_processes.py",
            "tests/integration/test_tenancy_quotas.py",
        ),
    ),
    Line(number="2a", claim="Backlogged, weights 1:1:2: shares of service within 10 % over 60 s", show=shares.show),
    Line(
        number="2b",
        claim="A flood of 1,000 requests: the others' p99 TTFT <= 1.5 times, only A bounced",
        show=flood.show,
    ),
    Line(
        number="3",
        claim="Own hits are told by time and by cached_tokens, another tenant's prefix never",
        show=timing.show,
    ),
    Line(
        number="4",
        claim="Over 300 adversarial requests: right status, nothing revealed, service goes on, no key in logs, traces, process lists",
        show=tests(
            "tests/integration/test_adversaries.py",
            "tests/integration/test_admin.py",
            "tests/integration/test_tenancy_edges.py",
        ),
    ),
    Line(number="5", claim="Less than 300 us of processor time a request", show=_overhead),
    Line(
        number="6",
        claim="Cases C21, C52, and the router's 18, 19 and 25 to 28",
        show=tests(
            "tests/unit/scheduler",
            "tests/unit/tenancy/test_hash_domains.py",
            "tests/integration/test_tenancy_isolation.py",
            "tests/integration/test_tenancy_quotas.py",
            "tests/integration/test_tenancy_edges.py",
            "tests/integration/test_dispatch_trouble.py",
            "tests/integration/test_failover.py",
            "tests/e2e/test_tenancy.py",
            "-k",
            " or ".join(("c21", "c52", *(f"router_case_{number}" for number in (18, 19, 25, 26, 27, 28)))),
        ),
    ),
)


def main(wanted: Sequence[str]) -> int:
    """All lines, or those whose number is given."""
    return accept("tenancy", LINES, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
