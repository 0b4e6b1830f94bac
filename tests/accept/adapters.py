"""Adapters: the "Must show", line by line: `make accept NAME=adapters`. To show some alone: python -m tests.accept.adapters 3 4."""

import sys
from collections.abc import Sequence

from tests.accept import adapter_churn, adapter_figures
from tests.accept.run import Line, accept, tests

BESIDE = "tests/integration/test_worker_adapters_beside.py"
STREAMS = "tests/integration/test_worker_adapters.py"

LINES = (
    Line(
        number="1",
        claim="Tokens equal transformers + peft, merged: 12 adapters, alone and mixed, cached, preempted, on SmolLM2 and three tiny models",
        show=tests(
            "tests/e2e/test_judge_adapters.py",
            "tests/e2e/test_judge_smollm2_adapters.py",
            "tests/e2e/test_worker_adapters.py",
        ),
    ),
    Line(
        number="2",
        claim="Throughput kept beside the bound: 1/1, 128/16 and 200/200; batches without adapters cost nothing; 24 on 16 is no cliff",
        show=adapter_figures.show,
    ),
    Line(
        number="3",
        claim="200 loads, replacements and unloads under 32 streams alter nothing, leave nothing, and keep the time between tokens",
        show=adapter_churn.show,
    ),
    Line(
        number="3b",
        claim="1,000 of them on a small model, at both depths",
        show=tests("tests/soak/test_adapter_churn.py", "-m", "soak", "--timeout", "600"),
    ),
    Line(
        number="4",
        claim="A replacement is used from the next request on, with none of the old blocks; what is in flight ends on the old",
        show=tests(STREAMS, "tests/e2e/test_worker_adapters.py", "-k", "c1 or c3 or replacement"),
    ),
    Line(
        number="5",
        claim="Each broken adapter is refused with its reason, and 16 streams do not notice",
        show=tests("tests/unit/adapters", BESIDE, "-k", "c5 or c6"),
    ),
    Line(
        number="6",
        claim="One request behind 31 of another adapter starts within its bounded wait, with one slot",
        show=tests("tests/unit/scheduler/test_adapters.py", BESIDE, "-k", "c10"),
    ),
    Line(
        number="7",
        claim="Cases C1 to C8 and C10",
        show=tests(
            "tests/unit/adapters",
            "tests/unit/scheduler/test_adapters.py",
            "tests/unit/scheduler/test_properties.py",
            STREAMS,
            BESIDE,
        ),
    ),
)


def main(numbers: Sequence[str]) -> int:
    """The lines with these numbers, or all."""
    return accept("adapters", LINES, numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
