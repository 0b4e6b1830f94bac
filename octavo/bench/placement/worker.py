"""A simulated worker: the real scheduler, block pool and prefix cache; a step takes what the step-time model says; tokens mean nothing."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from octavo.bench.placement.clock import SimClock
from shared.hashing import BLOCK_SIZE
from shared.types import Finished, KvDelta, KvSnapshot, Load, Rejected, TokenDelta, TokenRequest, WorkerInfo
from worker.events import KvChange, StepOutput
from worker.plan import StepPlan, StepResult
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler
from worker.scheduler.steptime import StepTimes, shape_of
from worker.servicer.credits import shares
from worker.servicer.settings import StreamSettings

FIRST_OUTPUT = 1 << 30  # token ids of outputs: no prompt has them, nor any other output
VOCABULARY = 1 << 31
EPOCH = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What all workers of a simulation are. `parameters` are the step-time model's (worker.scheduler.steptime), as a real worker measured
    them; a step takes what they say, give or take `jitter` of it. `blocks` are KV blocks of 16 tokens."""

    parameters: tuple[float, ...]
    blocks: int
    max_running: int = 64
    step_tokens: int = 512
    max_waiting: int = 256
    max_model_len: int = 1 << 17
    target_itl_s: float | None = None
    jitter: float = 0.03


class Listener(Protocol):
    """A router's end of one stream."""

    def loaded(self, load: Load) -> None:
        """A report."""

    def changed(self, delta: KvDelta) -> None:
        """The prefix cache's changes."""

    def snapshot(self, piece: KvSnapshot) -> None:
        """All of it."""

    def tokens(self, delta: TokenDelta) -> None:
        """New tokens."""

    def finished(self, finished: Finished) -> None:
        """A choice's end."""

    def rejected(self, rejected: Rejected) -> None:
        """A request that was not taken."""


class SimWorker:
    """One. `delay` is how long anything takes on its way, either way."""

    def __init__(self, name: str, spec: WorkerSpec, clock: SimClock, *, seed: int, delay: float):
        self.info = info_of(name, spec)
        self.scheduler = Scheduler(
            config_of(spec), spec.blocks, started_at=0.0, times=StepTimes(spec.parameters, measured=True)
        )
        self.steps = 0
        self._spec = spec
        self._clock = clock
        self._delay = delay
        self._truth = StepTimes(spec.parameters, measured=True)
        self._random = random.Random(f"{seed} {name}")
        self._streams: list[_Stream] = []
        self._stepping = False
        self._next_token = FIRST_OUTPUT

    def connect(self, listener: Listener) -> int:
        """A router comes; returns its stream. What the cache holds follows as a snapshot, then changes."""
        stream = _Stream(listener, self)
        self._streams.append(stream)
        piece = KvSnapshot(epoch=EPOCH, sequence=0, hashes=self.scheduler.published(), last=True)
        self._send(lambda: listener.snapshot(piece))
        stream.want_load()
        return len(self._streams) - 1

    def submit(self, stream: int, request: TokenRequest) -> None:
        """A Submit, on its way from now on."""
        self._clock.after(self._delay, lambda: self._take(stream, request))

    def _take(self, stream: int, request: TokenRequest) -> None:
        self._streams[stream].acked = request.seq
        self._tell(self.scheduler.submit(stream, request, self._clock()))
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        plan = self.scheduler.schedule(self._clock())
        self._stepping = plan is not None
        if plan is not None:
            self.steps += 1
            seconds = self._truth.predict(shape_of(plan)) * self._random.uniform(
                1 - self._spec.jitter, 1 + self._spec.jitter
            )
            self._clock.after(seconds, lambda: self._retire(plan))

    def _retire(self, plan: StepPlan) -> None:
        first, count = self._next_token, len(plan.samples)
        self._next_token += count
        result = StepResult(tokens=range(first, first + count), logprobs=[None] * count, errors=[None] * count)
        self._tell(self.scheduler.apply(plan, result, self._clock()))
        self._step()

    def _tell(self, output: StepOutput) -> None:
        for number, delta in output.deltas:
            self._send(_call(self._streams[number].listener.tokens, delta))
        for number, finished in output.finished:
            self._send(_call(self._streams[number].listener.finished, finished))
        for number, rejected in output.rejected:
            self._send(_call(self._streams[number].listener.rejected, rejected))
        changed = bool(output.kv.added or output.kv.removed)
        for stream in self._streams:
            if changed:
                self._send(_call(stream.listener.changed, stream.next_delta(output.kv)))
            stream.want_load()

    def _send(self, action: Callable[[], None]) -> None:
        self._clock.after(self._delay, action)

    def load(self, stream: "_Stream") -> Load:
        """As worker.servicer.hub makes it."""
        now = self._clock()
        stats = self.scheduler.stats(now)
        number = self._streams.index(stream)
        free = self._spec.max_waiting - stats.waiting
        return Load(
            step_seq=stats.step_seq + 1,
            acked_seq=stream.acked,
            running=stats.running,
            waiting=stats.waiting,
            waiting_uncached_tokens=stats.waiting_uncached_tokens,
            context_tokens=stats.context_tokens,
            free_blocks=stats.free_blocks,
            total_blocks=stats.total_blocks,
            has_work=stats.has_work,
            last_step_age_ms=int(1000 * (now - stats.last_step_at)),
            predicted_step_ms=1000 * self.scheduler.predicted_step_s,
            prefill_tokens_per_s=stats.prefill_tokens_per_s,
            credits=shares(free, range(len(self._streams)), int(now)).get(number, 0),
            step_us_per_sequence=1e6 * stats.sequence_s,
            step_us_per_context_token=1e6 * stats.context_token_s,
            cold_admissions=stats.cold_admissions,
            waiting_pairs=stats.waiting_pairs,
            step_us_per_pair=1e6 * stats.pair_s,
        )


class _Stream:
    """A router's stream as the worker has it; Loads go at changes, but not sooner than a gap after the last."""

    GAP = StreamSettings().load_gap

    def __init__(self, listener: Listener, worker: SimWorker):
        self.listener = listener
        self.acked = 0
        self.sequence = 0
        self._worker = worker
        self._armed = False
        self._next_at = 0.0

    def next_delta(self, change: KvChange) -> KvDelta:
        """Its next in sequence."""
        self.sequence += 1
        return KvDelta(epoch=EPOCH, sequence=self.sequence, added=change.added, removed=change.removed)

    def want_load(self) -> None:
        """What a Load tells may have changed."""
        if not self._armed:
            self._armed = True
            self._worker._clock.at(self._next_at, self._load)

    def _load(self) -> None:
        self._armed = False
        self._next_at = self._worker._clock() + self.GAP
        load = self._worker.load(self)
        self._worker._send(lambda: self.listener.loaded(load))


T = TypeVar("T")


def _call(action: Callable[[T], None], argument: T) -> Callable[[], None]:
    return lambda: action(argument)


def info_of(name: str, spec: WorkerSpec, tokenizer_digest: str = "") -> WorkerInfo:
    """Such a worker, by this name."""
    return WorkerInfo(
        worker_id=name,
        model="simulated",
        model_revision="simulated",
        tokenizer_digest=tokenizer_digest,
        numerics_id="",
        max_model_len=spec.max_model_len,
        vocab_size=VOCABULARY,
        block_size=BLOCK_SIZE,
        total_blocks=spec.blocks,
        max_running=spec.max_running,
        eos_token_ids=(),
        version="",
    )


def config_of(spec: WorkerSpec) -> SchedulerConfig:
    """Such a worker's."""
    return SchedulerConfig(
        max_running=spec.max_running,
        step_tokens=spec.step_tokens,
        max_model_len=spec.max_model_len,
        vocab_size=VOCABULARY,
        model_revision="simulated",
        eos_token_ids=(),
        max_waiting=spec.max_waiting,
        max_waiting_per_tenant=spec.max_waiting,
        target_itl_s=spec.target_itl_s,
    )
