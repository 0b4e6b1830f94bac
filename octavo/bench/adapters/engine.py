"""An engine in this process whose requests name adapters; device slots are filled beside its steps, as a worker fills them."""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from octavo.bench.metrics import Timeline
from octavo.bench.workload import Item
from shared.errors import Internal, InvalidRequest
from shared.types import OPEN_TENANT, Choice, FinishReason, Sampling, TokenRequest
from worker.adapters.jobs import NICENESS
from worker.adapters.version import Version
from worker.assemble import Parts
from worker.engine import Engine
from worker.events import StepOutput
from worker.plan import Executor, Pending, StepPlan
from worker.scheduler.scheduler import Scheduler

_STREAM = 1
_LONGEST_WAIT_S = 60.0  # for a slot to be filled, when nothing else can go on


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A request for the adapter of that number (None: the base alone), which comes `at` seconds after the run's start."""

    item: Item
    adapter: int | None = None
    at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one step did: `tokens` computed, `rows` sampled, `adapters` read."""

    tokens: int
    rows: int
    adapters: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What came of some requests. Seconds from the start to the last token; `loads` slots were filled meanwhile."""

    timelines: tuple[Timeline, ...]
    steps: tuple[Step, ...]
    seconds: float
    loads: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second, over the whole run."""
        return sum(timeline.output_tokens for timeline in self.timelines) / self.seconds

    @property
    def adapter_reads(self) -> int:
        """Adapters that steps read, each once a step."""
        return sum(step.adapters for step in self.steps)


class Beside:
    """A `worker.scheduler.adapters.SlotLoader`: adapters lie in host memory, and a thread below the steps packs them."""

    def __init__(self, device: Any, versions: Mapping[bytes, Version]):
        self.loads = 0
        self._device = device
        self._versions = versions
        self._answers: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapter-installer", initializer=_below_the_steps)

    def install(self, slot: int, digest: bytes) -> None:
        """See SlotLoader."""
        self._thread.submit(self._do, slot, digest)

    def clear(self, slot: int) -> None:
        """See SlotLoader."""
        self._thread.submit(self._device.clear, slot)

    def _do(self, slot: int, digest: bytes) -> None:
        try:
            self._device.install(slot, self._versions[digest].weights)
        except BaseException as error:  # noqa: BLE001 - raised where answers are taken
            self._answers.put(error)
        else:
            self._answers.put(slot)

    def filled(self, wait_s: float = 0.0) -> list[int]:
        """Slots that were filled since the last call, after waiting for the first where there is none. Raises what a loading raised."""
        found: list[int] = []
        try:
            while True:
                answer = self._answers.get(timeout=wait_s) if wait_s and not found else self._answers.get_nowait()
                if isinstance(answer, BaseException):
                    raise answer
                found.append(answer)
        except queue.Empty:
            self.loads += len(found)
            return found

    def close(self) -> None:
        """After the present job."""
        self._thread.shutdown(cancel_futures=True)


def _below_the_steps() -> None:
    import torch

    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    torch.set_num_threads(1)


class _Counting:
    """The executor, and how many adapters the last plan named."""

    def __init__(self, executor: Executor):
        self.adapters = 0
        self._executor = executor

    @property
    def depth(self) -> int:
        return self._executor.depth

    def execute(self, plan: StepPlan) -> Pending:
        self.adapters = len({chunk.adapter for chunk in plan.chunks if chunk.adapter >= 0})
        return self._executor.execute(plan)


@dataclass(kw_only=True, slots=True)
class _Live:
    ask: Ask
    due: float
    pieces: list[float] = field(default_factory=list)


class AdaptedEngine:
    """One engine over `parts`, whose slots it has to itself. `versions` are the adapters by their numbers; `changes` go into the
    scheduler's configuration.
    """

    def __init__(self, parts: Parts, versions: Sequence[Version] = (), **changes: Any):
        device = parts.adapters.device if parts.adapters else None
        self._digests = [version.digest for version in versions]
        self._beside = Beside(device, {version.digest: version for version in versions}) if device else None
        self._counting = _Counting(parts.executor)
        config = replace(parts.scheduler, **changes)
        started = time.monotonic()
        scheduler = Scheduler(
            config, parts.info.total_blocks, started_at=started, times=parts.times, loader=self._beside
        )
        self._engine = Engine(scheduler, self._counting)
        self._numbers = count(1)

    def run(self, asks: Sequence[Ask]) -> Run:
        """All of them, each when it comes, to their ends. Raises Internal where one ends otherwise than by its length."""
        began, loads = time.perf_counter(), self._loads()
        coming = deque(sorted(asks, key=lambda ask: ask.at))
        live: dict[int, _Live] = {}
        steps: list[Step] = []
        timelines: list[Timeline] = []
        while coming or live:
            while coming and began + coming[0].at <= time.perf_counter():
                self._submit(coming.popleft(), began, live)
            output = self._engine.step()
            timelines += _taken(live, output, time.perf_counter())
            self._note(steps)
            self._fill(self._spare(began, coming, live))
        return Run(
            timelines=tuple(timelines),
            steps=tuple(steps),
            seconds=time.perf_counter() - began,
            loads=self._loads() - loads,
        )

    def close(self) -> None:
        """Ends the thread that fills slots."""
        if self._beside:
            self._beside.close()

    def _loads(self) -> int:
        return self._beside.loads if self._beside else 0

    def _spare(self, began: float, coming: deque[Ask], live: Mapping[int, _Live]) -> float:
        """How long to wait where the engine could not go on: until the next request comes, or until a slot is filled."""
        if not self._engine.stalled or not (coming or live):
            return 0.0
        return max(0.0, began + coming[0].at - time.perf_counter()) if coming else _LONGEST_WAIT_S

    def _fill(self, wait_s: float) -> None:
        if self._beside is None:
            time.sleep(wait_s)
            return
        filled = self._beside.filled(wait_s)
        if wait_s == _LONGEST_WAIT_S and not filled:
            raise Internal("requests wait, and no adapter comes")
        for slot in filled:
            self._engine.adapter_loaded(slot)

    def _submit(self, ask: Ask, began: float, live: dict[int, _Live]) -> None:
        number = next(self._numbers)
        request = TokenRequest(
            seq=number,
            request_id=str(number),
            tenant=OPEN_TENANT,
            prompt_tokens=ask.item.prompt,
            choices=(Choice(handle=number, index=0),),
            sampling=Sampling(temperature=0.0, max_tokens=ask.item.output_tokens, ignore_eos=True),
            adapter_digest=b"" if ask.adapter is None else self._digests[ask.adapter],
        )
        live[number] = _Live(ask=ask, due=began + ask.at)
        for _, rejected in self._engine.submit(_STREAM, request).rejected:
            raise InvalidRequest(f"the engine refused a request: {rejected.message}", param="workload")

    def _note(self, steps: list[Step]) -> None:
        facts = self._engine.last_step
        if facts is not None:
            adapters = self._counting.adapters
            steps.append(Step(tokens=facts.computed, rows=facts.sampled, adapters=adapters, seconds=facts.seconds))


def _taken(live: dict[int, _Live], output: StepOutput, moment: float) -> list[Timeline]:
    """Notes the tokens of a step, and lets go of what it ended."""
    for _, delta in output.deltas:
        live[delta.handle].pieces += [moment] * len(delta.tokens)
    return [_ended(live.pop(end.handle), end) for _, end in output.finished]


def _ended(one: _Live, end: Any) -> Timeline:
    item = one.ask.item
    if end.reason is not FinishReason.LENGTH or len(one.pieces) != item.output_tokens:
        raise Internal(
            f"a request got {len(one.pieces)} of {item.output_tokens} tokens and ended by {end.reason.value}"
        )
    return Timeline(
        start=one.due,
        pieces=tuple(one.pieces),
        end=one.pieces[-1],
        prompt_tokens=len(item.prompt),
        output_tokens=item.output_tokens,
    )
