"""The fleet router: the "Must show", line by line: `make accept NAME=fleet`. To show some alone: python -m tests.accept.fleet 1a 6."""

import sys
from collections.abc import Sequence

from tests.accept import fleet_chaos, fleet_cost, placement, shared_prompts
from tests.accept.run import Line, accept, tests

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
        number="3a",
        claim="A decision without hashing: under 200 us for a prompt of 4k tokens on 64 workers, under 2 ms for 128k",
        show=fleet_cost.decision,
    ),
    Line(
        number="3b",
        claim="Hashing at most 1 us a block, off the loop; the index's memory flat after a million prompts that never come again",
        show=fleet_cost.memory,
    ),
    Line(
        number="4a",
        claim="A router on one core: 15,000 events/s; 40,000 tokens/s as it comes; 100,000 tokens/s over a Session",
        show=fleet_cost.rates,
    ),
    Line(
        number="4b",
        claim="At half of its most tokens a second it adds under 4 ms to the first token at the median, under 20 ms at p99",
        show=fleet_cost.first_tokens,
    ),
    Line(number="4c", claim="2,000 streams at once: memory flat", show=fleet_cost.streams),
    Line(number="4d", claim="Microseconds of processor a token, by part", show=fleet_cost.profile),
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
    return accept("fleet", LINES, numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
