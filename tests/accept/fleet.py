"""The fleet router: the "Must show", line by line: `make accept NAME=fleet`. To show some alone: python -m tests.accept.fleet 1a 6."""

import sys
from collections.abc import Sequence

from tests.accept import fleet_chaos, placement, shared_prompts
from tests.accept.run import Line, accept, chosen, tests

CASES = "tests/integration/test_router_cases.py"

LINES = (
    Line(
        number="1a",
        claim="Over 8 simulated workers at least 90 % of the hits of one cache of the summed size, at 30,000 and 10,000 blocks",
        show=placement.hits,
    ),
    Line(
        number="1b",
        claim="Where round robin's p99 of TTFT doubles: at most half of it and least_loaded's; prefill seconds max/mean p95 at most 1.5",
        show=placement.loaded,
    ),
    Line(
        number="1c",
        claim="Three minutes over real gRPC find cached what the simulator finds of the same requests, within 5 %",
        show=placement.over_grpc,
    ),
    Line(
        number="2a",
        claim="Two routers decide alike on a common view, and one that takes another's place finds what it had placed",
        show=tests(CASES, "-k", "c53 or case_7 or cases_7", "--timeout", "120"),
    ),
    Line(number="2b", claim="Two routers' hit rate is within 5 % of one's", show=placement.two_routers),
    Line(
        number="5",
        claim="Kills, stops and rolling restarts of 3 workers and 2 routers under 64 streams alter no answer and leave nothing",
        show=fleet_chaos.show,
    ),
    Line(
        number="6",
        claim="Two workers, 4 tenants with a system prompt of 300 tokens each: hits of at least 90 %, the cold ones spread",
        show=shared_prompts.show,
    ),
    Line(
        number="7",
        claim="The router cases, each by its number",
        show=tests(
            "tests/integration",
            "tests/unit/placement",
            "tests/unit/text",
            "-k",
            "router_case or c13 or c14 or c15 or c53",
            "--timeout",
            "300",
        ),
    ),
    Line(
        number="7b",
        claim="Case 17: a silent stream outlives many pings",
        show=tests("tests/soak/test_silent_streams.py", "-m", "soak", "--timeout", "300"),
    ),
)


def main(numbers: Sequence[str]) -> int:
    """The lines with these numbers, or all."""
    return accept("fleet", chosen(LINES, numbers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
