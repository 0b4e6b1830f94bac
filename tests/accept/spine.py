"""The spine's "Must show", line by line: `make accept NAME=spine`. Give numbers to show only those: python -m tests.accept.spine 3 4."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.accept import figures, fresh_clone
from tests.accept.run import Line, accept, command, tests

CASES = (
    "tests/e2e/test_cancel.py",  # C16, C17
    "tests/e2e/test_cases.py",  # C19, C27, C32, C33, C39
    "tests/integration/test_worker_cancel.py",
    "tests/integration/test_dispatch_life.py",
    "tests/unit/text",
    "tests/unit/scheduler",
)


def _checks() -> Mapping[str, Any]:
    return command("make", "check")


LINES = (
    Line(number="1", claim="A fresh clone's make serve answers a curl with sensible English", show=fresh_clone.show),
    Line(number="1b", claim="make check passes", show=_checks),
    Line(number="2", claim="Greedy tokens equal transformers', in every mode", show=tests("tests/e2e", "-k", "judge")),
    Line(
        number="3",
        claim="The openai client and fresh stubs do everything against the running stack",
        show=tests("tests/e2e/test_openai_client.py", "tests/e2e/test_fresh_stubs.py", "tests/e2e/test_readme.py"),
    ),
    Line(
        number="4",
        claim="Vanishing clients and a killed worker leave the rest untouched, and nothing behind",
        show=tests("tests/e2e/test_clients_and_workers_vanish.py"),
    ),
    Line(
        number="5",
        claim="Property tests of scheduler, pool and prefix cache, without torch, in seconds",
        show=tests("tests/unit/scheduler", "tests/unit/kvcache"),
    ),
    Line(number="6", claim="Planted violations are refused", show=tests("tests/architecture")),
    Line(
        number="7",
        claim="Both images build and the compose stack answers; the router's holds no torch",
        show=tests("tests/soak", "-m", "soak", "--timeout", "3600"),
    ),
    Line(number="8", claim="Throughput, TTFT, TPOT and ITL at 1, 8 and 32, beside transformers", show=figures.show),
    Line(number="9", claim="Cases C16, C17, C19, C27, C32, C33, C39, and liveness", show=tests(*CASES)),
)


def main(wanted: Sequence[str]) -> int:
    """All lines, or those whose number is given."""
    return accept("spine", LINES, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
