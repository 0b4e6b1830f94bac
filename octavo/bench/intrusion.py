"""`octavo bench intrusion`: what a long prompt that arrives does to the streams that are being written.

Some streams decode undisturbed for half of their tokens; then long prompts arrive, one after another, until the streams end. A gap between
two pieces of a stream counts as intruded where it overlaps the time from a prompt's sending to its first token.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """Seconds between two pieces of one stream: those before the first long prompt was sent, and those that overlapped one."""

    idle: tuple[float, ...]
    intruded: tuple[float, ...]


def split(streams: Sequence[Timeline], intruders: Sequence[Timeline]) -> Gaps:
    """The streams' gaps. Idle are those after every stream had its first piece."""
    begun = max(stream.pieces[0] for stream in streams)
    first = min(intruder.start for intruder in intruders)
    gaps = [(earlier, later) for stream in streams for earlier, later in pairwise(stream.pieces)]
    return Gaps(
        idle=tuple(later - earlier for earlier, later in gaps if earlier >= begun and later <= first),
        intruded=tuple(
            later - earlier
            for earlier, later in gaps
            if any(earlier < intruder.pieces[0] and later > intruder.start for intruder in intruders)
        ),
    )


class _Halfway:
    """Hears of pieces; `reached` is set when half of all tokens have come, `over` when the streams have ended."""

    def __init__(self, tokens: int):
        self.reached = asyncio.Event()
        self.over = False
        self._left = tokens // 2

    def piece(self, _moment: float) -> None:
        """One more."""
        self._left -= 1
        if self._left <= 0:
            self.reached.set()


async def _intrude(client: aiohttp.ClientSession, model: str, shape: Shape, half: _Halfway) -> list[Timeline]:
    """Long prompts, each new to the server, from half of the streams' tokens on to their end."""
    draw = random.Random(1)
    made = []
    await half.reached.wait()
    while not half.over:
        prompt = tuple(draw.randint(*shape.vocabulary) for _ in range(shape.prompt_tokens))
        made.append(await load.request(client, Item(prompt=prompt, output_tokens=_INTRUDER_OUTPUT), model))
    return made


async def _stream_all(client: aiohttp.ClientSession, model: str, shape: Shape, half: _Halfway) -> list[Timeline]:
    draw = random.Random(2)
    prompts = [tuple(draw.randint(*shape.vocabulary) for _ in range(STREAM_PROMPT)) for _ in range(shape.streams)]
    items = [Item(prompt=prompt, output_tokens=shape.output_tokens) for prompt in prompts]
    try:
        return await asyncio.gather(*(load.request(client, item, model, half.piece) for item in items))
    finally:
        half.over = True
        half.reached.set()


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
        half = _Halfway(shape.streams * shape.output_tokens)
        streams, intruders = await asyncio.gather(
            _stream_all(client, name, shape, half), _intrude(client, name, shape, half)
        )
    gaps = split(streams, intruders) if intruders else Gaps(idle=(), intruded=())
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
