"""The engine in this process, and requests that are put to it: scheduler and runner, without wire, router or text."""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from octavo.bench.bound import Step
from octavo.bench.metrics import Timeline
from octavo.bench.workload import Item, Probes, Workload
from shared.errors import Internal, InvalidRequest
from shared.types import OPEN_TENANT, Choice, FinishReason, Sampling, TokenRequest
from worker.assemble import Parts
from worker.engine import Engine
from worker.events import StepOutput
from worker.scheduler.scheduler import Scheduler

_STREAM = 1
_WARM_UP = ((0, 8), (1, 2))  # as the peers are warmed: some tokens of a short prompt, two of a long one


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What came of some requests that were submitted at once, and of each step. Seconds in all, from the first submit on."""

    timelines: tuple[Timeline, ...]
    steps: tuple[Step, ...]
    seconds: float

    @property
    def outside_s(self) -> float:
        """Between steps: scheduling, results, and what the loop here does with them."""
        return self.seconds - sum(step.seconds for step in self.steps)


@dataclass(kw_only=True, slots=True)
class _Live:
    """A request that has not ended, and when each of its tokens came."""

    item: Item
    start: float
    pieces: list[float] = field(default_factory=list)

    def timeline(self) -> Timeline:
        """Of its end. Raises Internal where tokens are missing."""
        if len(self.pieces) != self.item.output_tokens:
            raise Internal(f"a request got {len(self.pieces)} of {self.item.output_tokens} tokens")
        return Timeline(
            start=self.start,
            pieces=tuple(self.pieces),
            end=self.pieces[-1],
            prompt_tokens=len(self.item.prompt),
            output_tokens=self.item.output_tokens,
        )


class Offline:
    """An engine that this thread steps."""

    def __init__(self, parts: Parts):
        scheduler = Scheduler(parts.scheduler, parts.info.total_blocks, started_at=time.monotonic())
        self._engine = Engine(scheduler, parts.executor)
        self._numbers = count(1)

    def run(self, items: Sequence[Item], concurrency: int | None = None) -> Run:
        """All of them, to their ends, at once or so many at a time. Raises Internal where one ends otherwise than by its length."""
        began, waiting = time.perf_counter(), deque(items)
        live: dict[int, _Live] = {}
        steps: list[Step] = []
        timelines: list[Timeline] = []
        while waiting or live:
            while waiting and len(live) < (concurrency or len(items)):
                item = waiting.popleft()
                live[self._submit(item)] = _Live(item=item, start=time.perf_counter())
            output = self._engine.step()
            self._note(steps)
            timelines += _take(live, output, time.perf_counter())
        return Run(timelines=tuple(timelines), steps=tuple(steps), seconds=time.perf_counter() - began)

    def _submit(self, item: Item) -> int:
        number = next(self._numbers)
        sampling = Sampling(temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True)
        request = TokenRequest(
            seq=number,
            request_id=str(number),
            tenant=OPEN_TENANT,
            prompt_tokens=item.prompt,
            choices=(Choice(handle=number, index=0),),
            sampling=sampling,
        )
        for _, rejected in self._engine.submit(_STREAM, request).rejected:
            raise InvalidRequest(f"the engine refused a request: {rejected.message}", param="workload")
        return number

    def _note(self, steps: list[Step]) -> None:
        facts = self._engine.last_step
        if facts is not None:
            steps.append(Step(tokens=facts.computed, rows=facts.sampled, seconds=facts.seconds))


def _take(live: dict[int, _Live], output: StepOutput, moment: float) -> Iterator[Timeline]:
    """Notes the tokens of a step, and lets go of what it ended."""
    for _, delta in output.deltas:
        live[delta.handle].pieces += [moment] * len(delta.tokens)
    for _, end in output.finished:
        if end.reason is not FinishReason.LENGTH:
            raise Internal(f"a request ended by {end.reason.value}: {end.message}")
        yield live.pop(end.handle).timeline()


def probe(engine: Offline, probes: Probes) -> dict[str, Any]:
    """One request at a time, measured as the peers' programs do: medians of the time to one token of each prefill prompt, and for each
    decode prompt of its tokens after the first over the time that they add to a run of one token.
    """
    first = [engine.run([item]).seconds for item in probes.prefill]
    rates = []
    for item in probes.decode:
        alone = engine.run([Item(prompt=item.prompt, output_tokens=1)]).seconds
        rates.append((item.output_tokens - 1) / (engine.run([item]).seconds - alone))
    return {
        "prefill_tokens": len(probes.prefill[0].prompt) if probes.prefill else None,
        "ttft_ms": round(statistics.median(first) * 1000, 3) if first else None,
        "decode_tokens_per_s": round(statistics.median(rates), 3) if rates else None,
    }


def warm_up(engine: Offline, workload: Workload) -> None:
    """A few tokens of a decode probe and of a prefill probe, or of the first request where there are no probes."""
    prompts = [item.prompt for item in (*workload.probes.decode[:1], *workload.probes.prefill[:1])]
    for place, tokens in _WARM_UP:
        prompt = prompts[place] if place < len(prompts) else workload.items[0].prompt
        engine.run([Item(prompt=prompt, output_tokens=tokens)])
