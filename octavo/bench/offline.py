"""`octavo bench engine`: scheduler and runner in this process, without wire, router or text.

Nothing here imports torch before the engine is loaded, which sets the number of its threads in the environment that it reads.
"""

import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench import bound, metrics
from octavo.bench.bound import Limits, ModelSize, Step
from octavo.bench.metrics import Timeline
from octavo.bench.serving import line, report
from octavo.bench.workload import Item, Probes, Workload
from shared.errors import Internal, InvalidRequest
from shared.types import OPEN_TENANT, Choice, FinishReason, Sampling, TokenRequest
from worker.assemble import Parts
from worker.config import WorkerConfig
from worker.engine import Engine
from worker.events import StepOutput
from worker.loading import LoadFailed, load
from worker.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from octavo.bench.rates import Rate

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


def _share(run: Run, items: Sequence[Item], size: ModelSize, limits: Limits) -> dict[str, Any]:
    """The run beside what the machine allows."""
    least, cut = bound.of_workload(items, size, limits), bound.of_steps(run.steps, size, limits)
    output = sum(item.output_tokens for item in items)
    return {
        "seconds": round(least.seconds, 4),
        "prefill_s": round(least.prefill_s, 4),
        "decode_s": round(least.decode_s, 4),
        "decode_steps": least.decode_steps,
        "decode_steps_bound_by_memory": least.bound_by_memory,
        "output_throughput": round(output / least.seconds, 3),
        "share_reached": round(least.seconds / run.seconds, 4),
        "as_scheduled_s": round(cut, 4),
        "share_of_as_scheduled": round(cut / run.seconds, 4),
    }


def _steps(run: Run) -> dict[str, Any]:
    """Steps that only decode, and those that carry prompt tokens as well."""
    kinds = {
        "decode": [step for step in run.steps if step.tokens == step.rows],
        "mixed": [step for step in run.steps if step.tokens != step.rows],
    }
    told = {
        name: {
            "count": len(steps),
            "seconds": round(sum(step.seconds for step in steps), 4),
            "tokens": sum(step.tokens for step in steps),
            "sampled": sum(step.rows for step in steps),
        }
        for name, steps in kinds.items()
    }
    return {**told, "outside_s": round(run.outside_s, 4)}


def peak_rss() -> int:
    """Bytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """An engine, and how it came to be."""

    engine: Offline
    size: ModelSize
    settings: WorkerConfig
    dtype: str
    threads: int
    load_s: float


def loaded(settings: WorkerConfig) -> Loaded:
    """Raises Internal where the model cannot be loaded."""
    began = time.perf_counter()
    try:
        parts = load(settings)
    except (LoadFailed, ValueError) as error:  # ValueError: no such backend
        raise Internal(str(error)) from error
    load_s = time.perf_counter() - began
    from octavo.bench.model import dtype_of, size_of
    from worker.loading import set_threads

    return Loaded(
        engine=Offline(parts),
        size=size_of(settings),
        settings=settings,
        dtype=dtype_of(settings),
        threads=set_threads(settings, {}),
        load_s=load_s,
    )


def measure(
    it: Loaded,
    workload: Workload,
    *,
    repeats: int,
    loads: Sequence[tuple[int, int]] = (),
    progress: Callable[[str], None],
    rates_of: "Callable[[], dict[str, Rate]] | None" = None,
) -> dict[str, Any]:
    """The report: probes, then the whole workload at once, `repeats` times, with the machine's rates measured after each; then for each of
    `loads` (concurrency, requests) so many of its requests, as many at a time. `rates_of` measures (as `rates.measure` does).
    """
    from octavo.bench import rates

    rates_of = rates_of or machine_rates(it)
    warm_up(it.engine, workload)
    probes = probe(it.engine, workload.probes)
    runs: list[dict[str, Any]] = []
    peak = 0
    for _ in range(repeats):
        run = it.engine.run(workload.items)
        peak = peak or peak_rss()  # before the rates take memory of their own
        seen = rates_of()
        runs.append(_told(run, workload, it.size, rates.limits(seen), rates.told(seen)))
        progress(f"{line(runs[-1])}; {runs[-1]['bound']['share_reached']:.1%} of the bound")
    at = [_at(it.engine, workload, *load, progress) for load in loads]
    return {
        **report("octavo bench engine", Path(it.settings.model).name, workload, runs),
        "at": at,
        "engine": _engine(it),
        "load_s": round(it.load_s, 3),
        "peak_rss_bytes": peak,
        "weight_bytes": it.size.nbytes,
        "probes": {**probes, **_probe_share(probes, runs)},
    }


def machine_rates(it: Loaded) -> "Callable[[], dict[str, Rate]]":
    """Measures what the machine does with the engine's dtype, threads and kernels."""
    from kernels.backend import backend
    from octavo.bench import rates
    from worker.layers.weights import torch_dtype

    ops = backend(it.settings.backend, threads=it.threads, isa=it.settings.cpu_isa)
    return partial(rates.measure, torch_dtype(it.dtype), ops, it.threads)


def _at(
    engine: Offline, workload: Workload, concurrency: int, requests: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    run = engine.run(workload.first(requests).items, concurrency)
    told: dict[str, Any] = {"concurrency": concurrency, "failed": 0, "errors": [], **metrics.summary(run.timelines)}
    progress(line(told))
    return {**told, "steps": _steps(run)}


def _told(run: Run, workload: Workload, size: ModelSize, limits: Limits, seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "concurrency": len(workload.items),
        "failed": 0,
        "errors": [],
        **metrics.summary(run.timelines),
        "steps": _steps(run),
        "rates": seen,
        "bound": {**_share(run, workload.items, size, limits), **_decode_bound(size, limits)},
    }


def _decode_bound(size: ModelSize, limits: Limits) -> dict[str, float]:
    return {"one_stream_tokens_per_s": round(bound.decode_tokens_per_s(size, limits), 3)}


def _probe_share(probes: dict[str, Any], runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Against the rates measured closest to the probes."""
    if probes["decode_tokens_per_s"] is None:
        return {}
    limit = runs[0]["bound"]["one_stream_tokens_per_s"]
    return {"share_of_read_bound": round(probes["decode_tokens_per_s"] / limit, 4)}


def _engine(it: Loaded) -> dict[str, Any]:
    names = ("backend", "cpu_isa", "max_running", "step_tokens", "prefix_cache", "depth", "deterministic")
    return {"dtype": it.dtype, "threads": it.threads, **{name: asdict(it.settings)[name] for name in names}}
