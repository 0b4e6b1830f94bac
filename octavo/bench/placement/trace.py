"""What is replayed: who comes when, with which prompt, and how much output each gets.

Mooncake's traces (kvcache-ai/Mooncake, Apache-2.0) name a prompt by the ids of its blocks of 512 tokens, so that equal beginnings are
known without any text. Here a trace's block stands for GRAIN tokens of ours, and lengths shrink by the same factor: GRAIN is what routers
see of a prefix, so that they see as much of the trace as of a prompt eight times as long; and a CPU's step times stay within what was
measured.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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


def mooncake(path: Path, *, limit: int | None = None) -> list[Arrival]:
    """The trace in `path` (.jsonl.gz), in order. Its timestamps are milliseconds. A session is all that shares its second block."""
    return list(_arrivals(path, limit))


def _arrivals(path: Path, limit: int | None) -> Iterator[Arrival]:
    with gzip.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            if number == limit:
                return
            row = json.loads(line)
            ids = tuple(row["hash_ids"])
            yield Arrival(
                at=row["timestamp"] / 1000,
                ids=ids,
                prompt_tokens=min(GRAIN * len(ids), max(1, round(row["input_length"] / SCALE))),
                output_tokens=max(1, round(row["output_length"] / SCALE)),
                session=str(ids[1]).encode() if len(ids) > 1 else b"",
            )


def faster(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """The same requests, `factor` times as many in a second."""
    return [replace(each, at=each.at / factor) for each in arrivals]
