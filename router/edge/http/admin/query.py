"""What stands behind the ? of the operators' addresses. Unknown names are refused: a misspelled filter must not mean all."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from fastapi import Request

from router.admin.paging import SIZE, Page
from router.tenancy.store import FOREVER
from shared.errors import InvalidRequest

PAGE = frozenset({"page_size", "page_token"})


def given(request: Request, names: frozenset[str]) -> Mapping[str, str]:
    """The parameters, by name. Raises InvalidRequest naming one that is none of `names`, or stands there twice."""
    values = request.query_params
    wrong = next((name for name in values if name not in names or len(values.getlist(name)) > 1), None)
    if wrong is not None:
        known = ", ".join(sorted(names)) or "none"
        raise InvalidRequest(
            f"{wrong[:100]!r} is no parameter of this, or stands there twice; there are {known}", param=wrong[:100]
        )
    return values


def page_of(values: Mapping[str, str]) -> Page:
    """Raises InvalidRequest."""
    size = values.get("page_size", str(SIZE))
    whole = size.isascii() and size.isdecimal() and len(size) < 9
    return Page(size=int(size) if whole else 0, after=values.get("page_token", ""))


def moment(text: str, param: str) -> float:
    """Unix seconds of Unix seconds or ISO 8601 (UTC where it names no zone). Raises InvalidRequest."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _iso(text)
    if not math.isfinite(seconds):
        raise InvalidRequest(f"{param} must be Unix seconds, or a time as 2026-01-31T12:00:00Z", param=param)
    return seconds


def _iso(text: str) -> float:
    """Infinite where it is none."""
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.inf


def span(values: Mapping[str, str]) -> tuple[float, float]:
    """since and until; from the beginning, and for ever, where they are not given."""
    since = moment(values["since"], "since") if "since" in values else 0.0
    return since, moment(values["until"], "until") if "until" in values else FOREVER
