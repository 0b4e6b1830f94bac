"""Points in time, as commands take and print them. A time without a zone is UTC's."""

import argparse
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

_SPAN = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
FORMS = "2026-01-31, 2026-01-31T12:00:00+01:00, or a span such as 30d (s, m, h, d, w)"


def _moment(sign: int, clock: Callable[[], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        span = _SPAN.fullmatch(text)
        if span:
            return clock() + sign * int(span[1]) * _SECONDS[span[2]]
        try:
            when = datetime.fromisoformat(text)
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is no time: {FORMS}") from None

    return parse


def past(clock: Callable[[], float] = time.time) -> Callable[[str], float]:
    """Unix seconds; a span is so long ago."""
    return _moment(-1, clock)


def future(clock: Callable[[], float] = time.time) -> Callable[[str], float]:
    """Unix seconds; a span is so long from now."""
    return _moment(1, clock)


def shown(seconds: float | None) -> str:
    """In UTC to the second; "never" where there is no such time, and Unix seconds where no calendar has it."""
    if seconds is None:
        return "never"
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
