"""`octavo bench intrusion`: what a long prompt that arrives does to the streams that are being written.

The streams are written twice: once undisturbed; and once while long prompts arrive, one after another, from the moment that every stream
has begun. A gap between two pieces of a stream counts as intruded where it overlaps the time from a prompt's sending to its first token.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import aiohttp

from octavo.bench import load
from octavo.bench.metrics import Timeline, percentile
from octavo.bench.serving import report
from octavo.bench.workload import FIRST_TOKEN, LAST_TOKEN, Item, Workload
from shared.errors import Internal

STREAM_PROMPT = 64  # tokens
_INTRUDER_OUTPUT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`streams` of `output_tokens` each, and prompts of `prompt_tokens` that arrive; `vocabulary` bounds their ids."""

    streams: int
    output_tokens: int
    prompt_tokens: int
    vocabulary: tuple[int, int] = (FIRST_TOKEN, LAST_TOKEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps:
    """Seconds between two pieces of one stream: those of streams alone, and those that overlapped a long prompt."""

    idle: tuple[float, ...]
    intruded: tuple[float, ...]


def split(alone: Sequence[Timeline], streams: Sequence[Timeline], intruders: Sequence[Timeline]) -> Gaps:
    """The gaps of both runs. Idle are those after every stream of the first had its first piece."""
    begun = max(stream.pieces[0] for stream in alone)
    return Gaps(
        idle=tuple(later - earlier for earlier, later in _pairs(alone) if earlier >= begun),
        intruded=tuple(
            later - earlier
            for earlier, later in _pairs(streams)
            if any(earlier < intruder.pieces[0] and later > intruder.start for intruder in intruders)
        ),
    )


def _pairs(streams: Sequence[Timeline]) -> list[tuple[float, float]]:
    """The moments of each piece and of the one behind it."""
    return [pair for stream in streams for pair in pairwise(stream.pieces)]


class _Progress:
    """`begun` is set when every stream has its first piece, `over` when the streams have ended."""

    def __init__(self, streams: int):
        self.begun = asyncio.Event()
        self.over = False
        self._silent = set(range(streams))

    def piece(self, stream: int, _moment: float) -> None:
        """One more of a stream."""
        self._silent.discard(stream)
        if not self._silent:
            self.begun.set()

    def end(self) -> None:
        """Of all streams, or of one that failed; who waits for their beginning waits no longer."""
        self.over = True
        self.begun.set()


async def _intrude(client: aiohttp.ClientSession, model: str, shape: Shape, seen: _Progress) -> list[Timeline]:
    """Long prompts, each new to the server, from the streams' beginning to their end."""
    draw = random.Random(1)
    made = []
    await seen.begun.wait()
    while not seen.over:
        prompt = tuple(draw.randint(*shape.vocabulary) for _ in range(shape.prompt_tokens))
        made.append(await load.request(client, Item(prompt=prompt, output_tokens=_INTRUDER_OUTPUT), model))
    return made


async def _stream_all(
    client: aiohttp.ClientSession, model: str, shape: Shape, draw: random.Random, seen: _Progress
) -> list[Timeline]:
    prompts = [tuple(draw.randint(*shape.vocabulary) for _ in range(STREAM_PROMPT)) for _ in range(shape.streams)]
    items = [Item(prompt=prompt, output_tokens=shape.output_tokens) for prompt in prompts]
    try:
        return await asyncio.gather(
            *(load.request(client, item, model, partial(seen.piece, place)) for place, item in enumerate(items))
        )
    finally:
        seen.end()


def figures(gaps: Gaps) -> dict[str, float | int]:
    """ITL p50 and p99 of both kinds, in milliseconds, and the ratio of their p99."""
    told: dict[str, float | int] = {}
    for name, values in (("idle", gaps.idle), ("intruded", gaps.intruded)):
        told[f"{name}_gaps"] = len(values)
        told |= {f"{name}_p{percent}_itl_ms": round(percentile(values, percent) * 1000, 3) for percent in (50, 99)}
    told["p99_ratio"] = round(percentile(gaps.intruded, 99) / percentile(gaps.idle, 99), 3)
    return told


async def measure(
    url: str, *, model: str | None, shape: Shape, progress: Callable[[str], None], api_key: str | None = None
) -> dict[str, Any]:
    """The report. Raises RequestFailed, and Internal where the streams ended before a long prompt was answered."""
    async with load.session(url, api_key) as client:
        name = model or await load.only_model(client)
        draw, seen = random.Random(2), _Progress(shape.streams)
        alone = await _stream_all(client, name, shape, draw, _Progress(shape.streams))
        streams, intruders = await asyncio.gather(
            _stream_all(client, name, shape, draw, seen), _intrude(client, name, shape, seen)
        )
    gaps = split(alone, streams, intruders)
    if not gaps.idle or not gaps.intruded:
        raise Internal("the streams were too short: no long prompt arrived while they were written")
    run = {
        "streams": shape.streams,
        "prompt_tokens": shape.prompt_tokens,
        "intruders": len(intruders),
        "intruder_ttft_ms": [round(intruder.ttft * 1000, 1) for intruder in intruders],
        **figures(gaps),
    }
    progress(line(run))
    return report("octavo bench intrusion", name, Workload(name="streams and long prompts", items=()), [run])


def line(run: dict[str, Any]) -> str:
    """One run, for people."""
    return (
        f"{run['streams']} streams, ITL p50 / p99: idle {run['idle_p50_itl_ms']:.1f} / {run['idle_p99_itl_ms']:.1f} ms, "
        f"while prompts of {run['prompt_tokens']} tokens arrive {run['intruded_p50_itl_ms']:.1f} / "
        f"{run['intruded_p99_itl_ms']:.1f} ms: {run['p99_ratio']:.2f}x"
    )
