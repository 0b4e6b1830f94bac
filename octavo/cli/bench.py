"""`octavo bench`: figures of a server, and of transformers beside it."""

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.bench.workload import Workload


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser(
        "bench", help="measure throughput and latency", description="Measure throughput and latency, as JSON."
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    _add_serving(kinds)
    _add_hf(kinds)


def _add_serving(kinds: Any) -> None:
    parser = kinds.add_parser(
        "serving",
        help="a server's /v1/completions, streaming",
        description="Load on an OpenAI-compatible server; without --url, on the demo model, served for the run.",
    )
    parser.add_argument("--url", help="of the server: http://127.0.0.1:8000")
    parser.add_argument("--model", help="its name there (the first that is served)")
    parser.add_argument(
        "--concurrency", type=_positive, nargs="+", default=[1, 8, 32], help="clients at a time (1 8 32)"
    )
    parser.add_argument("--requests", type=_positive, help="of each run (4 a client, at least 8)")
    _add_shared(parser)
    parser.set_defaults(run=_serving, takes_rest=False)


def _add_hf(kinds: Any) -> None:
    parser = kinds.add_parser(
        "hf",
        help="transformers' generate, one request at a time",
        description="The same requests by transformers' own generate, for comparison.",
    )
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument("--requests", type=_positive, default=8, help="(%(default)s)")
    parser.add_argument("--threads", type=_positive, help="of torch (its own choice)")
    _add_shared(parser)
    parser.set_defaults(run=_hf, takes_rest=False)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", type=Path, help="a JSON file of requests (a generated mix of lengths)")
    parser.add_argument("--seed", type=int, default=0, help="of the generated mix (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the report goes (stdout)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Progress:
    """What a stack that is served for a run tells."""

    def state(self, text: str) -> None:
        _progress(f"octavo: {text}")

    notice = state

    def log(self, name: str, line: str) -> None:
        _progress(f"[{name}] {line}")


def _workload(arguments: argparse.Namespace) -> "Workload":
    from octavo.bench import workload

    return workload.read(arguments.workload) if arguments.workload else workload.generated(arguments.seed)


def _write(report: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        _progress(f"written to {out}")


async def _on_server(arguments: argparse.Namespace, url: str) -> dict[str, Any]:
    from octavo.bench import serving

    return await serving.measure(
        url,
        _workload(arguments),
        model=arguments.model,
        concurrencies=arguments.concurrency,
        requests=arguments.requests,
        progress=_progress,
    )


async def _on_demo(arguments: argparse.Namespace) -> dict[str, Any]:
    from octavo.bench.serving import served
    from octavo.cli.pull import fetched
    from octavo.supervise.stack import StackConfig

    path = await asyncio.to_thread(fetched, "demo", _progress)
    config = StackConfig(model=str(path), served_name=path.name, port=0, grpc_port=0)
    async with served(config, _Progress()) as url:
        return await _on_server(arguments, url)


def _serving(arguments: argparse.Namespace) -> int:
    from octavo.supervise.supervised import StartFailed

    work: Coroutine[Any, Any, dict[str, Any]]
    work = _on_server(arguments, arguments.url) if arguments.url else _on_demo(arguments)
    try:
        report = asyncio.run(work)
    except StartFailed as failed:
        _progress(f"octavo: cannot serve the demo model: {failed}")
        return 1
    _write(report, arguments.json)
    return 0 if all(run["failed"] == 0 for run in report["runs"]) else 1


def _hf(arguments: argparse.Namespace) -> int:
    from octavo.bench import hf
    from octavo.cli.pull import fetched

    if arguments.threads:
        import torch

        torch.set_num_threads(arguments.threads)
    path = fetched(arguments.model, _progress)
    _write(hf.measure(path, _workload(arguments), requests=arguments.requests, progress=_progress), arguments.json)
    return 0
