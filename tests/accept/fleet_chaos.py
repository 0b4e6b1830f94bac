"""Workers are killed, stopped and replaced under 64 streams of the demo model: every stream ends whole, as on a quiet day.

Streams are closed loops over a few requests, greedy and drawn by a seed; each answer is compared, token for token, with what the same
fleet gave before anything happened. Workers are found through a file, as an operator's tool would keep it: a replacement enters it once it
serves, and what is replaced leaves it before it is told to stop.
"""

import asyncio
import itertools
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from octavo.bench.metrics import percentile
from octavo.client.aio import AsyncClient
from tests.fakes.fleet_processes import Child, start_router, start_worker

WORKERS = 3
STREAMS = 64
STOPPED_SECONDS = 9.0  # a stopped worker's streams go on elsewhere after 5
PAUSE_SECONDS = 2.0  # between two faults
SETTLE_SECONDS = 30.0
DRAIN_SECONDS = "3"  # what has not ended by then goes on elsewhere
SMALL = ("--threads", "1", "--kv-memory", "192MiB", "--max-model-len", "512", "--max-running", "64")
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


@dataclass(kw_only=True)
class Site:
    """A router over the workers in `file`. `faults` are (kind, begin, end)."""

    model: Path
    file: Path
    router: Child
    workers: list[Child] = field(default_factory=list)
    faults: list[tuple[str, float, float]] = field(default_factory=list)

    async def hire(self) -> Child:
        """One more worker, which serves and stands in the file."""
        child = await start_worker(
            self.model, *SMALL, "--drain-seconds", DRAIN_SECONDS, "--metrics-port", "0", "--log-level", "warning"
        )
        self.workers.append(child)
        await child.ready()
        self.write()
        return child

    def write(self) -> None:
        """The file, all at once."""
        beside = self.file.with_suffix(".new")
        beside.write_text("".join(f"{child.address}\n" for child in self.workers))
        beside.rename(self.file)

    async def kill(self, number: int) -> None:
        """kill -9, and a replacement."""
        child = self.workers[number]
        await child.kill()
        self.workers.remove(child)
        await self.hire()

    async def stop(self, number: int) -> None:
        """SIGSTOP for a while."""
        child = self.workers[number]
        child.send(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_SECONDS)
        child.send(signal.SIGCONT)

    async def roll(self, number: int) -> None:
        """A replacement, then SIGTERM to the oldest; `number` is of no matter."""
        child = self.workers[0]
        await self.hire()
        self.workers.remove(child)
        self.write()
        child.send(signal.SIGTERM)
        assert await child.ended() == 0, f"worker {number} did not drain well"

    async def samples(self, address: str) -> dict[str, float]:
        """Every metric, by its name and labels."""
        async with httpx.AsyncClient(timeout=30) as client:
            text = (await client.get(f"http://{address}/metrics")).text
        families = text_string_to_metric_families(text)
        return {_key(one.name, one.labels): one.value for family in families for one in family.samples}

    async def left(self) -> list[str]:
        """What is not back to nothing."""
        router = await self.samples(self.router.said["http"])
        counts = ("octavo_router_requests_in_flight", "octavo_router_requests_queued")
        left = [key for key, value in router.items() if key.startswith(counts) and value]
        for child in self.workers:
            worker = await self.samples(child.said["metrics"])
            free, all_of_them = worker["octavo_worker_kv_blocks state=free"], worker["octavo_worker_kv_blocks_capacity"]
            left += [f"{child.address} {name}" for name in ("running", "waiting") if worker[f"octavo_worker_{name}"]]
            left += [f"{child.address} {all_of_them - free} blocks"] if free != all_of_them else []
        return left


def _key(name: str, labels: Mapping[str, str]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in sorted(labels.items()) if key != "model")])


@asynccontextmanager
async def site(model: Path, folder: Path) -> AsyncIterator[Site]:
    """With all its workers. What the router logs is in `folder`/router.log."""
    file = folder / "workers"
    file.write_text("")
    with (folder / "router.log").open("w") as log:
        router = await start_router("--workers-file", str(file), "--log-level", "info", log=log)
        running = Site(model=model, file=file, router=router)
        try:
            await asyncio.gather(*(running.hire() for _ in range(WORKERS)))
            await router.ready()
            yield running
        finally:
            await asyncio.gather(*(child.kill() for child in (router, *running.workers)))


class Callers:
    """Closed loops over the cases. What each got is compared at once."""

    def __init__(self, client: AsyncClient, quiet: Sequence[Answer]):
        self._client = client
        self._quiet = quiet
        self._over = asyncio.Event()
        self.answers: list[Answer] = []

    async def run(self, number: int) -> int:
        """Until it is over; how many answers. Raises at the first that differs."""
        count = 0
        for at in itertools.count(number):
            case = at % len(CASES)
            answer = await ask(self._client, CASES[case])
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
    """Seconds that the router took to say that it is ready, ten times a second, until cancelled. Raises where it says that it is not."""
    taken: list[float] = []
    async with httpx.AsyncClient(timeout=30) as client:
        try:
            while True:
                began = time.monotonic()
                answer = await client.get(f"http://{running.router.said['http']}/ready")
                assert answer.status_code == 200, answer.text
                taken.append(time.monotonic() - began)
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            return taken


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
    async with site(model, folder) as running, AsyncClient(running.router.said["grpc"], timeout=240) as client:
        quiet = await asyncio.gather(*(ask(client, case) for case in CASES))
        callers = Callers(client, quiet)
        async with callers.calling() as tasks:
            looking = asyncio.create_task(looks(running))
            await trouble(running, plan)
            looking.cancel()
            ready = await looking
        end = time.monotonic() + SETTLE_SECONDS
        while (left := await running.left()) and time.monotonic() < end:
            await asyncio.sleep(0.2)
        router = await running.samples(running.router.said["http"])
    log = (folder / "router.log").read_text()
    noise = [line for line in log.splitlines() if any(word in line for word in NOISE)]
    resumed = {key.rpartition("=")[2]: value for key, value in router.items() if "_resumed_total" in key}
    failed = {key: value for key, value in router.items() if "_requests_total" in key and "outcome=ok" not in key}
    return {
        "passed": not left and not failed and not noise and resumed.get("exact", 0) > 0,
        "streams": STREAMS,
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


PLAN = ("kill", "stop", "roll", "roll", "roll", "kill", "stop")


def show() -> Mapping[str, Any]:
    """On the demo model."""
    from octavo.demo import pull_demo
    from worker.sources.cache import cache_directory

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(measure(pull_demo(cache_directory(), print), Path(folder), PLAN))
    return {**told, "seconds": round(time.monotonic() - began, 1)}
