"""What arguments may be, and what is said of those that are not."""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """A whole number from `low` up, to `high` where that is given."""
    wanted = f"of at least {low}" if high is None else f"from {low} to {high}"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return number

    return parse


def real(low: float, high: float = math.inf) -> Callable[[str], float]:
    """A finite number from `low` to `high`."""
    wanted = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {wanted}")
        return number

    return parse


def output(text: str) -> Path:
    """A file that can be written, said at once and not after what is to be kept in it was an hour's work."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file's name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no directory {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def url(text: str) -> str:
    """The start of a server's addresses: a scheme and a host, without the /v1 that OpenAI's clients want behind it."""
    try:
        parts = urlsplit(text)
        ok = (
            not any(map(str.isspace, text))
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
            and parts.path in ("", "/", "/v1", "/v1/")
        )
    except ValueError:  # a port that is none, or an address that is none
        ok = False
    if not ok:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


def target(text: str) -> str:
    """A gRPC server's host:port."""
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no host:port such as 127.0.0.1:50051")
    return text


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """--api-key, which octavo.client.credentials completes from the environment."""
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="where the server wants one; better in $OCTAVO_API_KEY, which no list of processes shows",
    )
