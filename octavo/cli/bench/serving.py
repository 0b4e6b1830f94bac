"""`octavo bench serving`: load on a server's HTTP API."""

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.cli.arguments import add_api_key, url
from octavo.cli.bench.options import add_workload, positive, progress, workload_of, write


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "serving",
        help="a server's /v1/completions, streaming",
        description="Load on an OpenAI-compatible server; without --url, on the demo model, served for the run.",
    )
    parser.add_argument(
        "--url", type=url, help="of the server, such as http://127.0.0.1:8000 (the demo model is served)"
    )
    add_api_key(parser)
    parser.add_argument("--model", help="its name there (the first that is served)")
    parser.add_argument(
        "--concurrency", type=positive, nargs="+", default=[1, 8, 32], help="clients at a time (1 8 32)"
    )
    parser.add_argument("--requests", type=positive, help="of each run (4 a client, at least 8)")
    add_workload(parser)
    parser.set_defaults(run=run, takes_rest=False)


class _Progress:
    """What a stack that is served for a run tells."""

    def state(self, text: str) -> None:
        progress(f"octavo: {text}")

    notice = state

    def log(self, name: str, line: str) -> None:
        progress(f"[{name}] {line}")


async def on_server_or_demo(
    url: str | None, measure: Callable[[str], Coroutine[Any, Any, dict[str, Any]]]
) -> dict[str, Any]:
    """The report of what is measured at `url`, or on the demo model, served meanwhile. Raises Internal where that cannot start."""
    from octavo.bench.serving import served
    from octavo.cli.pull import fetched
    from octavo.supervise.stack import StackConfig
    from shared.errors import Internal
    from shared.supervise.supervised import StartFailed

    if url:
        return await measure(url)
    path = await asyncio.to_thread(fetched, "demo", progress)
    config = StackConfig(model=str(path), served_name=path.name, port=0, grpc_port=0)
    try:
        async with served(config, _Progress()) as at:
            return await measure(at)
    except StartFailed as failed:
        raise Internal(f"cannot serve the demo model: {failed}") from failed


def run(arguments: argparse.Namespace) -> int:
    """Status 1 where a request failed, or the demo could not be served."""

    async def on_server(url: str) -> dict[str, Any]:
        from octavo.bench import serving

        return await serving.measure(
            url,
            workload_of(arguments),
            model=arguments.model,
            api_key=arguments.api_key,
            concurrencies=arguments.concurrency,
            requests=arguments.requests,
            progress=progress,
        )

    report = asyncio.run(on_server_or_demo(arguments.url, on_server))
    write(report, arguments.json)
    return 0 if all(run["failed"] == 0 for run in report["runs"]) else 1
