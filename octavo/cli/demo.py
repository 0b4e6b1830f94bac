"""`octavo demo`: things to try Octavo with."""

import argparse
import sys
from pathlib import Path
from typing import Any

from octavo.cli.arguments import whole


def add(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    parser = commands.add_parser("demo", help="make adapters to try", description="Make things to try Octavo with.")
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    _add_adapters(kinds)


def _add_adapters(kinds: Any) -> None:
    parser = kinds.add_parser(
        "adapters",
        help="LoRA adapters: three voices, or random ones",
        description="Train three small LoRA adapters of a model, each a PEFT directory under DIR, for `octavo serve --adapter-dir DIR`: "
        "engineering, marketing and legal answer the same questions each in a voice of its own (minutes on a CPU; needs peft: "
        "pip install 'octavo[train]'). At the end it prints how well each knows each voice, on answers that none was trained on. With "
        "--count, random ones instead, to try out many: their weights are drawn, and what the model says with them makes no sense.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where they go, as DIR/legal or DIR/adapter-001")
    parser.add_argument("--model", default="demo", help="a directory, or what `octavo pull` takes (%(default)s)")
    parser.add_argument("--count", type=whole(1, 999), metavar="N", help="so many random ones instead")
    parser.add_argument("--rank", type=whole(1, 1024), default=8, help="of each (%(default)s)")
    parser.add_argument(
        "--seed", type=whole(0), default=0, help="of the first; each random one has its own (%(default)s)"
    )
    parser.set_defaults(run=run_adapters, takes_rest=False)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_adapters(arguments: argparse.Namespace) -> int:
    """Progress goes to stderr, the directory to stdout."""
    from octavo.cli.pull import fetched

    path = fetched(arguments.model, _progress)
    if arguments.count is None:
        _train(path, arguments)
    else:
        _draw(path, arguments)
    print(arguments.directory)
    return 0


def _train(model: Path, arguments: argparse.Namespace) -> None:
    from shared.errors import Unavailable

    try:
        from octavo.demo_voices import train
    except ImportError as error:
        raise Unavailable(f"training needs {error.name}: pip install 'octavo[train]'") from error
    training = train.Training(rank=arguments.rank, seed=arguments.seed)
    losses = train.train(model, arguments.directory, training, _progress)
    _progress("nats a token on each voice's answers that none was trained on:")
    for name, own in losses.items():
        _progress(f"{name:<12}" + "  ".join(f"{voice} {loss:.3f}" for voice, loss in own.items()))


def _draw(model: Path, arguments: argparse.Namespace) -> None:
    from octavo import demo_adapters
    from shared.errors import InvalidRequest
    from worker.models.errors import ModelError
    from worker.sources.errors import SourceError
    from worker.sources.open import open_checkpoint

    try:
        base = demo_adapters.base_of(open_checkpoint(str(model)).checkpoint)
    except (SourceError, ModelError) as error:
        raise InvalidRequest(str(error), param="model") from error
    demo_adapters.write_many(
        arguments.directory, base, count=arguments.count, rank=arguments.rank, seed=arguments.seed, progress=_progress
    )
