"""`octavo bench engine`: figures of the engine alone, beside what the machine allows.

Nothing here imports torch before the engine is loaded, which sets the number of its threads in the environment that it reads.
"""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bench import bound, metrics
from octavo.bench.bound import Limits, ModelSize
from octavo.bench.offline import Offline, Run, probe, warm_up
from octavo.bench.serving import line, report
from octavo.bench.workload import Item, Workload
from shared.errors import Internal
from worker.assemble import Parts
from worker.config import WorkerConfig
from worker.loading import LoadFailed, load

if TYPE_CHECKING:
    from kernels.backend import Backend
    from octavo.bench.rates import Rate


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
    ops: "Backend"  # as the engine's, for rates
    size: ModelSize
    settings: WorkerConfig
    dtype: str
    threads: int
    load_s: float


def parts_of(settings: WorkerConfig) -> Parts:
    """As the worker loads it. Raises Internal where it cannot be loaded."""
    try:
        return load(settings)
    except LoadFailed as error:
        raise Internal(str(error)) from error


def loaded(settings: WorkerConfig) -> Loaded:
    """Raises Internal where the model cannot be loaded."""
    began = time.perf_counter()
    parts = parts_of(settings)
    load_s = time.perf_counter() - began
    from kernels.backend import backend
    from octavo.bench.model import dtype_of, size_of
    from worker.loading import set_threads

    threads = set_threads(settings, {})
    return Loaded(
        engine=Offline(parts),
        ops=backend(settings.backend, threads=threads, isa=settings.cpu_isa),
        size=size_of(settings),
        settings=settings,
        dtype=dtype_of(settings),
        threads=threads,
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
    from octavo.bench import rates
    from worker.layers.weights import torch_dtype

    return partial(rates.measure, torch_dtype(it.dtype), it.ops, it.threads)


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
    names = ("max_running", "step_tokens", "prefix_cache", "depth", "deterministic")
    kernels = {"backend": it.ops.name, "numerics": it.ops.numerics}
    return {**kernels, "dtype": it.dtype, "threads": it.threads, **{name: asdict(it.settings)[name] for name in names}}
