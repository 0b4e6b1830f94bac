"""What is replayed: who comes when, with which prompt, and how much output each gets.

Mooncake's traces (kvcache-ai/Mooncake, Apache-2.0) name a prompt by the ids of its blocks of 512 tokens, so that equal beginnings are
known without any text. Here a trace's block stands for GRAIN tokens of ours, and lengths shrink by the same factor: GRAIN is what routers
see of a prefix, so that they see as much of the trace as of a prompt eight times as long; and a CPU's step times stay within what was
measured.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.hashing import BLOCK_SIZE, PUBLISH_EVERY

TRACE_BLOCK = 512  # tokens of the trace
GRAIN = BLOCK_SIZE * PUBLISH_EVERY  # tokens of ours for one such block
SCALE = TRACE_BLOCK // GRAIN
UNBOUNDED = 1 << 20  # outputs: more than any request takes


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A request. `at` is in seconds; `ids` name its prompt's pieces of GRAIN tokens, the last of which may be shorter.

    `most_outputs` is what it allows, which a router sees; `output_tokens` come.
    """

    at: float
    ids: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    session: bytes = b""
    most_outputs: int = UNBOUNDED

    def tokens(self) -> list[int]:
        """Its prompt: equal ids at equal places give equal tokens."""
        return [number for number in self.ids for _ in range(GRAIN)][: self.prompt_tokens]


class BadTrace(ValueError):
    """What is wrong, and in which line."""


def mooncake(path: Path, *, limit: int | None = None) -> list[Arrival]:
    """The trace in `path` (JSON lines, gzipped or not), in order. Its timestamps are milliseconds. A session is all that shares its second
    block. Raises OSError where it cannot be read, BadTrace where it is none.
    """
    try:
        return list(_arrivals(path, limit))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BadTrace(str(error)) from error


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rt") if zipped else path.open() as lines:
        yield from lines


def _arrivals(path: Path, limit: int | None) -> Iterator[Arrival]:
    before = 0.0
    for number, line in enumerate(_lines(path), 1):
        if limit is not None and number > limit:
            return
        try:
            arrival = _arrival(json.loads(line))
            if arrival.at < before:
                raise ValueError("its timestamp is before that of the line before it")
        except KeyError as error:
            raise BadTrace(f"line {number} has no {error}") from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadTrace(f"line {number}: {error}") from error
        before = arrival.at
        yield arrival


def _arrival(row: dict[str, Any]) -> Arrival:
    """Raises KeyError, ValueError or TypeError where it is none."""
    ids, lengths = tuple(row["hash_ids"]), (row["input_length"], row["output_length"])
    if not ids or not all(type(each) is int for each in (*ids, *lengths)) or min(lengths) < 0:
        raise ValueError("hash_ids, input_length and output_length must be whole numbers, and at least one id")
    if not math.isfinite(row["timestamp"]):
        raise ValueError("its timestamp is not finite")
    return Arrival(
        at=row["timestamp"] / 1000,
        ids=ids,
        prompt_tokens=min(GRAIN * len(ids), max(1, round(lengths[0] / SCALE))),
        output_tokens=max(1, round(lengths[1] / SCALE)),
        session=str(ids[1]).encode() if len(ids) > 1 else b"",
    )


def faster(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """The same requests, `factor` times as many in a second."""
    return [replace(each, at=each.at / factor) for each in arrivals]
