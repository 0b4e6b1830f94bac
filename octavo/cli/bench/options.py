"""What the kinds of bench share: their arguments, and how they tell what they found."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.arguments import output, whole

if TYPE_CHECKING:
    from octavo.bench.workload import Workload


def positive(text: str) -> int:
    """argparse's type of a number of at least 1."""
    return whole(1)(text)


def load(text: str) -> tuple[int, int]:
    """argparse's type of C:N, N requests of which C run at a time."""
    concurrency, between, requests = text.partition(":")
    if not between:
        raise argparse.ArgumentTypeError(f"{text!r} is not C:N such as 8:96")
    return positive(concurrency), positive(requests)


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", type=output, metavar="OUT", help="where the report goes (stdout)")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """--workload, --seed and --json."""
    parser.add_argument("--workload", type=Path, help="a JSON file of requests (a generated mix of lengths)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the generated mix (%(default)s)")
    add_json(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the engine runs and computes, by the worker's names."""
    add_kernels(parser)
    parser.add_argument("--max-running", type=positive, help="requests that run at a time (the worker's own choice)")
    parser.add_argument(
        "--step-tokens", type=positive, help="most tokens that a step computes (the worker's own choice)"
    )


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """How it computes, by the worker's names."""
    parser.add_argument("--backend", help="of the kernels: cpu, reference, triton (auto: the fastest that runs)")
    parser.add_argument(
        "--cpu-isa",
        help="instructions that the cpu kernels use: amx, avx512_bf16, avx512, avx2, generic (auto: the best there are)",
    )
    parser.add_argument("--threads", type=positive, help="that compute (as many as the cores this process really gets)")
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help="(as the model is stored)"
    )


@contextmanager
def refused() -> Iterator[None]:
    """Raises InvalidRequest for a model that cannot be read, and for what its kernels cannot do."""
    from kernels.errors import NoBackend
    from shared.errors import InvalidRequest
    from worker.models.errors import ModelError

    try:
        yield
    except (NoBackend, ModelError, ValueError) as error:
        raise InvalidRequest(str(error)) from error


def workload_of(arguments: argparse.Namespace) -> "Workload":
    """The file's, or the generated one."""
    from octavo.bench import workload

    return workload.read(arguments.workload) if arguments.workload else workload.generated(arguments.seed)


def progress(line: str) -> None:
    """A line for people, while it runs."""
    print(line, file=sys.stderr, flush=True)


def write(report: dict[str, Any], out: Path | None) -> None:
    """The report to the file, or to stdout."""
    text = json.dumps(report, indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        progress(f"written to {out}")
