"""`octavo bench intrusion`: long prompts among streams."""

import argparse
import asyncio
from typing import Any

from octavo.cli.arguments import add_api_key, url
from octavo.cli.bench.options import add_json, positive, progress, write
from octavo.cli.bench.serving import on_server_or_demo


def add(kinds: Any) -> None:
    """Adds the kind to argparse's subparsers."""
    parser = kinds.add_parser(
        "intrusion",
        help="streams while long prompts arrive",
        description="The time between the tokens of some streams, written twice: undisturbed, and while long prompts arrive; without "
        "--url, on the demo model, served for the run.",
    )
    parser.add_argument(
        "--url", type=url, help="of the server, such as http://127.0.0.1:8000 (the demo model is served)"
    )
    add_api_key(parser)
    parser.add_argument("--model", help="its name there (the first that is served)")
    parser.add_argument("--streams", type=positive, default=8, help="that are being written (%(default)s)")
    parser.add_argument("--output-tokens", type=positive, default=512, help="of each stream (%(default)s)")
    parser.add_argument("--prompt-tokens", type=positive, default=2000, help="of each long prompt (%(default)s)")
    add_json(parser)
    parser.set_defaults(run=run, takes_rest=False)


def run(arguments: argparse.Namespace) -> int:
    """The report of one run."""

    async def on_server(url: str) -> dict[str, Any]:
        from octavo.bench import intrusion

        shape = intrusion.Shape(
            streams=arguments.streams,
            output_tokens=arguments.output_tokens,
            prompt_tokens=arguments.prompt_tokens,
        )
        return await intrusion.measure(
            url, model=arguments.model, api_key=arguments.api_key, shape=shape, progress=progress
        )

    report = asyncio.run(on_server_or_demo(arguments.url, on_server))
    write(report, arguments.json)
    return 0
