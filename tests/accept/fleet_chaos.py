"""Workers and routers are killed, stopped and replaced under 64 streams of the demo model: every stream ends whole, as on a quiet day.

Streams are closed loops over a few requests, greedy and drawn by a seed; each answer is compared, token for token, with what the same
fleet gave before anything happened. What happens to workers, callers do not notice. A router takes its streams with it when it is killed;
callers then ask again at another, as any caller would, and nobody else fails.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from octavo.bench.metrics import percentile
from octavo.client.aio import AsyncClient
from shared.errors import Unavailable
from tests.accept.fleet_site import WORKERS, Door, Site, site

STREAMS = 64
PAUSE_SECONDS = 2.0  # between two faults
SETTLE_SECONDS = 30.0
PROMPTS = ("Once upon a time", "The recipe begins with", "In the year 2031", "def main():", "Dear Sir or Madam,")
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 48},
    {"temperature": 0.9, "seed": 11, "max_tokens": 40},
    {"temperature": 0.8, "seed": 12, "max_tokens": 32, "n": 2, "top_p": 0.9},
    {"temperature": 0.7, "seed": 13, "max_tokens": 48, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    {"temperature": 0.0, "max_tokens": 48, "stop": ("\n",)},
)
CASES = [{"prompt": prompt, **kind} for prompt in PROMPTS for kind in KINDS]

NOISE = ("Traceback", "BlockingIOError", "Exception", "Too many pings")  # in the router's log

Tokens = dict[int, list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a caller got. `gaps` are (when, seconds) between what came, from the first token on."""

    tokens: Tokens
    text: dict[int, str]
    ends: dict[int, str | None]
    usage: tuple[int, int]
    gaps: tuple[tuple[float, float], ...] = field(default=(), compare=False)


async def ask(client: AsyncClient, case: Mapping[str, Any]) -> Answer:
    """One stream to its end. Raises where it fails, ends without an end, or counts what did not come."""
    options = {"ignore_eos": True, "return_tokens": True, "stream": True, **case}
    tokens, text, ends, gaps, before = Tokens(), dict[int, str](), dict[int, str | None](), [], 0.0
    async with await client.complete(options.pop("prompt"), **options) as stream:
        async for delta in stream:
            assert ends.get(delta.index) is None, "something after the end"
            tokens.setdefault(delta.index, []).extend(delta.tokens)
            text[delta.index] = text.get(delta.index, "") + delta.text
            ends[delta.index] = delta.finish_reason
            now = time.monotonic()
            if before:
                gaps.append((now, now - before))
            before = now
        usage = stream.usage
    assert usage is not None, "no usage"
    assert None not in ends.values(), "no end"
    assert usage.completion_tokens == sum(map(len, tokens.values())), "usage is not what came"
    return Answer(
        tokens=tokens, text=text, ends=ends, usage=(usage.prompt_tokens, usage.completion_tokens), gaps=tuple(gaps)
    )


class Callers:
    """Closed loops over the cases, at the routers in turns. What each got is compared at once.

    A stream that is cut because its router was killed or replaced is asked again, at another, from its beginning: `asked_again` counts
    them. Any other failure is one.
    """

    def __init__(self, running: Site, quiet: Sequence[Answer]):
        self._running = running
        self._quiet = quiet
        self._over = asyncio.Event()
        self.answers: list[Answer] = []
        self.asked_again = 0

    async def _answer(self, number: int, case: int) -> Answer:
        while True:
            doors = self._running.doors
            door = doors[number % len(doors)]
            try:
                return await ask(door.client, CASES[case])
            except Unavailable:
                if door in self._running.doors:
                    raise
                self.asked_again += 1

    async def run(self, number: int) -> int:
        """Until it is over; how many answers. Raises at the first that differs."""
        count = 0
        for at in itertools.count(number):
            case = at % len(CASES)
            answer = await self._answer(number, case)
            assert answer == self._quiet[case], f"case {case}: {answer} and not {self._quiet[case]}"
            self.answers.append(answer)
            count += 1
            if self._over.is_set():
                break
        return count

    @asynccontextmanager
    async def calling(self) -> AsyncIterator["list[asyncio.Task[int]]"]:
        """All of them, while the context lasts and to the end of what they asked."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.run(number)) for number in range(STREAMS)]
            try:
                yield tasks
            finally:
                self._over.set()


async def trouble(running: Site, plan: Sequence[str]) -> None:
    """One fault after the other."""
    for number, kind in enumerate(plan):
        await asyncio.sleep(PAUSE_SECONDS)
        began = time.monotonic()
        await getattr(running, kind)(number % WORKERS)
        running.faults.append((kind, began, time.monotonic()))


async def looks(running: Site) -> list[float]:
    """Seconds that routers took to say that they are ready, ten times a second, until cancelled. Raises where one says that it is not."""
    taken: list[float] = []
    async with httpx.AsyncClient(timeout=30) as client:
        try:
            while True:
                for door in list(running.doors):
                    began = time.monotonic()
                    if await _ready(running, door, client):
                        taken.append(time.monotonic() - began)
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            return taken


async def _ready(running: Site, door: Door, client: httpx.AsyncClient) -> bool:
    """False where it has been killed or replaced meanwhile."""
    try:
        answer = await client.get(f"http://{door.http}/ready")
    except httpx.TransportError:
        if door in running.doors:
            raise
        return False
    assert answer.status_code == 200 or door not in running.doors, answer.text
    return answer.status_code == 200


def gaps_of(answers: Sequence[Answer], faults: Sequence[tuple[str, float, float]]) -> dict[str, dict[str, float]]:
    """By the kind of fault, the largest gap that each stream saw meanwhile: its median, p99 and largest, in seconds."""
    told = {}
    for kind in sorted({kind for kind, *_ in faults}):
        spans = [(begin, end) for each, begin, end in faults if each == kind]
        within = [
            [gap for at, gap in answer.gaps if any(begin <= at <= end for begin, end in spans)] for answer in answers
        ]
        largest = [max(gaps) for gaps in within if gaps]
        told[kind] = {"p50": percentile(largest, 50), "p99": percentile(largest, 99), "most": max(largest)}
    return told


def resumed_p99(router: Mapping[str, float]) -> float:
    """The upper bound of the router's bucket with the p99 of the seconds between two tokens of different workers."""
    name = "octavo_router_resume_gap_seconds"
    count = router.get(f"{name}_count", 0.0)
    buckets = sorted(
        (float(key.rpartition("=")[2]), value) for key, value in router.items() if key.startswith(f"{name}_bucket")
    )
    return next((bound for bound, value in buckets if value >= 0.99 * count), 0.0)


async def measure(model: Path, folder: Path, plan: Sequence[str]) -> Mapping[str, Any]:
    """What happened. "passed" means that all streams were whole and nothing is left."""
    async with site(model, folder) as running:
        quiet = await asyncio.gather(*(ask(running.doors[0].client, case) for case in CASES))
        callers = Callers(running, quiet)
        async with callers.calling() as tasks:
            looking = asyncio.create_task(looks(running))
            try:
                await trouble(running, plan)
            finally:
                looking.cancel()
                ready = await looking
        end = time.monotonic() + SETTLE_SECONDS
        while (left := await running.left()) and time.monotonic() < end:
            await asyncio.sleep(0.2)
        router = await running.routers()
    log = (folder / "router.log").read_text()
    noise = [line for line in log.splitlines() if any(word in line for word in NOISE)]
    resumed = {key.rpartition("=")[2]: value for key, value in router.items() if "_resumed_total" in key}
    failed = {key: value for key, value in router.items() if "_requests_total" in key and "outcome=ok" not in key}
    return {
        "passed": not left and not failed and not noise and resumed.get("exact", 0) > 0,
        "streams": STREAMS,
        "asked_again": callers.asked_again,
        "answers_compared": sum(task.result() for task in tasks),
        "tokens_compared": sum(answer.usage[1] for answer in callers.answers),
        "faults": [kind for kind, *_ in running.faults],
        "fault_seconds": [round(end - begin, 1) for _, begin, end in running.faults],
        "resumed": resumed,
        "failed": failed,
        "left": left,
        "largest_gap_s": gaps_of(callers.answers, running.faults),
        "resume_gap_p99_at_most_s": resumed_p99(router),
        "ready_s": {"p50": percentile(ready, 50), "p99": percentile(ready, 99), "most": max(ready)},
        "noise": noise[:20],
    }


PLAN = (
    "kill",
    "stop",
    "roll",
    "kill_router",
    "roll",
    "roll_router",
    "roll",
    "roll_router",
    "kill",
    "stop",
    "kill_router",
)


def show() -> Mapping[str, Any]:
    """On the demo model."""
    from octavo.demo import pull_demo
    from worker.sources.cache import cache_directory

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(measure(pull_demo(cache_directory(), print), Path(folder), PLAN))
    return {**told, "seconds": round(time.monotonic() - began, 1)}
