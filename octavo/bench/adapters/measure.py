"""`octavo bench adapters`: what adapters cost the engine, each figure in turns with the same requests without them.

Prefix caches are on, as they are by default (a request that gives its slot away for a while finds its own blocks again); every run has
prompts that none before it had.

The bound of a run with adapters is the time of the same requests without any, and the bytes of each step's different adapters over the rate
at which memory is read, measured beside it: t_base / (t_base + bytes / rate) of the base's throughput.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from octavo import demo_adapters
from octavo.bench import metrics, rates
from octavo.bench.adapters import beside
from octavo.bench.adapters.cases import Case, arriving, at_once, repeated, turned
from octavo.bench.adapters.engine import AdaptedEngine, Ask, Run
from octavo.bench.engine import parts_of
from octavo.bench.model import dtype_of
from octavo.bench.workload import Workload
from worker.adapters.version import Version
from worker.assemble import Parts
from worker.config import WorkerConfig
from worker.layers.weights import torch_dtype
from worker.sources.open import open_checkpoint

Progress = Callable[[str], None]
IDLE, CLIFF, VLLM = "idle", "cliff", "vllm"
FULL, OVER = Case(distinct=16, slots=16), Case(distinct=24, slots=16)  # of the cliff
LOAD = 0.7  # of the capacity that is measured with FULL
_WARM_UP = 4  # requests, of a few tokens
_WARM_UP_TOKENS = 4
_HOST_BYTES = 1 << 30  # of one adapter at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """`parts` are cases by name, IDLE, CLIFF and VLLM; `pairs` of each, `requests` of each run, `seconds` of each of the cliff."""

    settings: WorkerConfig
    threads: int
    workload: Workload
    cases: tuple[Case, ...]
    parts: tuple[str, ...]
    rank: int
    pairs: int
    requests: int
    seconds: float
    seed: int

    @property
    def distinct(self) -> int:
        """Adapters that are needed."""
        ends = [FULL.distinct, OVER.distinct] if CLIFF in self.parts else []
        return max([case.distinct for case in self.cases] + ends, default=0)

    @property
    def most(self) -> tuple[int, int]:
        """Device slots and requests at a time that the engine needs at most."""
        cases = [*self.cases, *((FULL, OVER) if CLIFF in self.parts else ())]
        eight = [len(beside.RANKS)] if VLLM in self.parts else []
        return max([case.slots for case in cases] + eight, default=1), max((case.running for case in cases), default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A loaded model with slots, and adapters in host memory, `nbytes` each as they lie in a slot."""

    asked: Asked
    parts: Parts
    versions: tuple[Version, ...]
    nbytes: int
    progress: Progress

    @contextmanager
    def engine(self, **changes: Any) -> Iterator[AdaptedEngine]:
        """One of its own on the model. `changes` go into the scheduler's configuration."""
        engine = AdaptedEngine(self.parts, self.versions, **changes)
        try:
            yield engine
        finally:
            engine.close()

    def read_rate(self) -> float:
        """Bytes a second, just now."""
        return rates.read(self.asked.threads).median


def measure(asked: Asked, progress: Progress) -> dict[str, Any]:
    """All that was asked for. Raises Internal where the model cannot be loaded."""
    slots, running = asked.most
    settings = replace(asked.settings, max_adapters=slots, max_running=max(running, asked.settings.max_running))
    parts = parts_of(settings)
    try:
        versions = _versions(asked, parts, progress)
        bench = Bench(
            asked=asked, parts=parts, versions=versions, nbytes=_nbytes(settings, versions), progress=progress
        )
        told: dict[str, Any] = {"cases": [_retained(bench, case) for case in asked.cases]}
        if IDLE in asked.parts:
            told[IDLE] = _idle(bench, settings)
        if CLIFF in asked.parts:
            told[CLIFF] = _cliff(bench)
        if VLLM in asked.parts:
            told[VLLM] = beside.measure(parts, _reader(parts), asked.workload, 1, progress)
    finally:
        parts.close()
    return {
        "adapter": {"rank": asked.rank, "bytes": bench.nbytes, "modules": "all projections"},
        "workload": asked.workload.name,
        "engine": {"dtype": dtype_of(settings), "threads": asked.threads, "step_tokens": settings.step_tokens},
        **told,
    }


def _versions(asked: Asked, parts: Parts, progress: Progress) -> tuple[Version, ...]:
    """Written as directories and read as a worker reads them, one at a time."""
    if not asked.distinct:
        return ()
    read, base = _reader(parts), demo_adapters.base_of(open_checkpoint(asked.settings.model).checkpoint)
    progress(f"making {asked.distinct} adapters of rank {asked.rank}")
    found = []
    for number in range(asked.distinct):
        with TemporaryDirectory() as folder:
            wanted = demo_adapters.Adapter(rank=asked.rank, seed=asked.seed + number)
            written = demo_adapters.write(Path(folder), base, wanted)
            found.append(read(written))
    return tuple(found)


def _reader(parts: Parts) -> Callable[[Path], Version]:
    assert parts.adapters is not None
    read = parts.adapters.read
    return lambda directory: read(directory, _HOST_BYTES)


def _nbytes(settings: WorkerConfig, versions: Sequence[Version]) -> int:
    """Of one adapter in the engine's dtype, without padding."""
    pairs = versions[0].weights.pairs() if versions else ()
    return int(sum(pair.a.numel() + pair.b.numel() for _, _, pair in pairs)) * torch_dtype(dtype_of(settings)).itemsize


def _warm_up(engine: AdaptedEngine, asks: Sequence[Ask]) -> None:
    """Some short ones of both kinds, with adapters and without."""
    short = [replace(ask, item=replace(ask.item, output_tokens=_WARM_UP_TOKENS)) for ask in asks[:_WARM_UP]]
    engine.run(short)
    engine.run([replace(ask, adapter=None) for ask in short])


# ---- throughput with adapters


def _retained(bench: Bench, case: Case) -> dict[str, Any]:
    """Pairs of the same requests without adapters and with them, on one engine."""
    asked = bench.asked
    items = repeated(asked.workload.items, case.requests(asked.requests))
    adapters = case.adapters(len(items), asked.seed)
    pairs = []
    with bench.engine(max_adapters=case.slots, max_running=case.running) as engine:
        _warm_up(engine, at_once(items, adapters))
        for turn in range(1, asked.pairs + 1):
            own_items = turned(items, turn)
            base, own = engine.run(at_once(own_items, None)), engine.run(at_once(own_items, adapters))
            read = bench.read_rate()
            pairs.append(_pair(base, own, bench.nbytes, read))
            bench.progress(f"{case.name}: {_line(pairs[-1])}")
    names = ("retention", "bound", "share_of_bound")
    medians = {name: round(statistics.median(pair[name] for pair in pairs), 4) for name in names}
    return {
        "case": case.name,
        "distinct": case.distinct,
        "slots": case.slots,
        "running": case.running,
        "requests": len(items),
        **medians,
        "pairs": pairs,
    }


def _pair(base: Run, own: Run, nbytes: int, read: float) -> dict[str, Any]:
    retention = own.tokens_per_s / base.tokens_per_s
    bound = base.seconds / (base.seconds + own.adapter_reads * nbytes / read)
    return {
        "base_tokens_per_s": round(base.tokens_per_s, 1),
        "adapter_tokens_per_s": round(own.tokens_per_s, 1),
        "retention": round(retention, 4),
        "bound": round(bound, 4),
        "share_of_bound": round(retention / bound, 4),
        "adapters_a_step": round(own.adapter_reads / len(own.steps), 2),
        "read_gb_per_s": round(read / 1e9, 2),
        "loads": own.loads,
        "steps": {"base": _steps(base), "adapters": _steps(own)},
    }


def _steps(run: Run) -> dict[str, Any]:
    """Those that only decode, and those that carry prompt tokens as well."""
    kinds = {
        "decode": [step for step in run.steps if step.tokens == step.rows],
        "mixed": [step for step in run.steps if step.tokens != step.rows],
    }
    return {
        name: {
            "count": len(steps),
            "tokens": sum(step.tokens for step in steps),
            "seconds": round(sum(step.seconds for step in steps), 4),
        }
        for name, steps in kinds.items()
    }


def _line(pair: dict[str, Any]) -> str:
    return (
        f"{pair['base_tokens_per_s']:.1f} output tok/s without, {pair['adapter_tokens_per_s']:.1f} with: {pair['retention']:.3f}; "
        f"the bound {pair['bound']:.3f}, of it {pair['share_of_bound']:.3f}"
    )


# ---- batches without adapters


def _idle(bench: Bench, settings: WorkerConfig) -> dict[str, Any]:
    """The same requests, none of which has an adapter, on an engine with slots and on one without."""
    items = bench.asked.workload.first(bench.asked.requests).items
    other = parts_of(replace(settings, max_adapters=0))
    pairs = []
    try:
        plain = AdaptedEngine(other)
        with bench.engine() as slotted:
            for engine in (plain, slotted):
                _warm_up(engine, at_once(items, None))
            for turn in range(1, bench.asked.pairs + 1):
                asks = at_once(turned(items, turn), None)
                without, own = plain.run(asks).tokens_per_s, slotted.run(asks).tokens_per_s
                pairs.append(
                    {"without_slots": round(without, 1), "with_slots": round(own, 1), "ratio": round(own / without, 4)}
                )
                bench.progress(f"idle: {without:.1f} output tok/s without slots, {own:.1f} with: {own / without:.3f}")
    finally:
        other.close()
    return {"ratio": round(statistics.median(pair["ratio"] for pair in pairs), 4), "pairs": pairs}


# ---- more adapters than slots


def _cliff(bench: Bench) -> dict[str, Any]:
    """As many adapters as slots, and half as many again, at the same load: the time to the first token, in turns."""
    asked = bench.asked
    items = asked.workload.first(asked.requests).items
    changes = {"max_adapters": FULL.slots, "max_running": asked.settings.max_running, "target_itl_s": None}
    with bench.engine(**changes) as engine:
        all_at_once = at_once(items, [number % FULL.distinct for number in range(len(items))])
        _warm_up(engine, all_at_once)
        capacity = len(items) / engine.run(all_at_once).seconds
        bench.progress(f"cliff: capacity {capacity:.2f} requests/s with {FULL.name}")
        pairs = [
            _paired(bench, engine, turned(items, 13 * turn), LOAD * capacity, turn)
            for turn in range(1, asked.pairs + 1)
        ]
    ratio = statistics.median(pair["ratio"] for pair in pairs)
    return {"capacity": round(capacity, 3), "load": LOAD, "ratio": round(ratio, 4), "pairs": pairs}


def _paired(bench: Bench, engine: AdaptedEngine, items: Sequence[Any], rate: float, turn: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for place, case in enumerate((FULL, OVER)):
        asks = arriving(
            turned(items, 7 * place),
            distinct=case.distinct,
            rate=rate,
            seconds=bench.asked.seconds,
            seed=bench.asked.seed + turn,
        )
        run = engine.run(asks)
        told[case.name] = {"requests": len(asks), "loads": run.loads, **_latencies(run)}
    ratio = told[OVER.name]["median_ttft_ms"] / told[FULL.name]["median_ttft_ms"]
    first, second = (told[case.name]["median_ttft_ms"] for case in (FULL, OVER))
    bench.progress(
        f"cliff: median TTFT {first:.0f} ms with {FULL.name}, {second:.0f} ms with {OVER.name}: {ratio:.2f}x"
    )
    return {**told, "ratio": round(ratio, 4)}


def _latencies(run: Run) -> dict[str, Any]:
    names = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "output_throughput")
    return {name: value for name, value in metrics.summary(run.timelines).items() if name in names}
