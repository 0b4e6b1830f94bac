"""What the router carries: events, tokens, what it adds to the first token, and its memory under many streams.

Each figure is of one router on one core; simulated workers and the reader share the other.
"""

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.metrics import percentile
from octavo.bench.router import profile, session
from octavo.bench.router.rig import OTHER_CORE, Rig, pin, rig
from octavo.bench.router.sink import Sink

ENDLESS = 1 << 19  # tokens: longer than any measurement
STARTING_AT_ONCE = 16
STARTING_S = 60.0  # in which all streams must have begun
SETTLING_S = 2.0
_MB = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`streams` at once over so many `workers`, measured for `seconds`."""

    streams: int = 64
    workers: int = 4
    seconds: float = 10.0


def _opened(on: Rig, shape: Shape, max_tokens: int) -> Sink:
    """A sink whose streams have all begun."""
    sink, deadline = Sink(address=on.http), time.perf_counter() + STARTING_S
    for _ in range(shape.streams):
        sink.ask(max_tokens)
        while sink.open - len(sink.firsts) > STARTING_AT_ONCE and time.perf_counter() < deadline:
            sink.read(time.perf_counter() + 0.001)
    while len(sink.firsts) < shape.streams:
        if time.perf_counter() > deadline:
            raise TimeoutError(f"of {shape.streams} streams {len(sink.firsts)} began")
        sink.read(time.perf_counter() + 0.05)
    return sink


def _saturated(on: Rig, sink: Sink, seconds: float) -> dict[str, float]:
    sink.read(time.perf_counter() + SETTLING_S)
    events, tokens, began, cpu = sink.counts.events, sink.counts.tokens, time.perf_counter(), on.cpu_seconds()
    sink.read(began + seconds)
    took, used = time.perf_counter() - began, on.cpu_seconds() - cpu
    events, tokens = sink.counts.events - events, sink.counts.tokens - tokens
    return {
        "events_per_s": events / took,
        "tokens_per_s": tokens / took,
        "tokens_per_event": tokens / max(events, 1),
        "router_core_busy": used / took,
        "cpu_us_per_token": 1e6 * used / max(tokens, 1),
        "cpu_us_per_event": 1e6 * used / max(events, 1),
    }


def saturated(shape: Shape, *, coalesce_ms: float | None = None) -> dict[str, float]:
    """As many events and tokens a second as the router gives, with workers that never wait. `coalesce_ms`: the router's, if not its own."""
    pin(OTHER_CORE)
    flags = () if coalesce_ms is None else ("--coalesce-ms", str(coalesce_ms))
    with rig(workers=shape.workers, step_ms=0.0, router=flags) as on:
        sink = _opened(on, shape, ENDLESS)
        try:
            return _saturated(on, sink, shape.seconds)
        finally:
            sink.close()


def profiled(shape: Shape) -> dict[str, Any]:
    """Microseconds of the router's processor a token, by part, while it carries all that it can."""
    pin(OTHER_CORE)
    with rig(workers=shape.workers, step_ms=0.0) as on:
        sink = _opened(on, shape, ENDLESS)
        stop, stacks = threading.Event(), list[str]()
        reader = threading.Thread(target=_drain, args=(sink, stop))
        sink.read(time.perf_counter() + SETTLING_S)
        tokens, cpu = sink.counts.tokens, on.cpu_seconds()
        reader.start()
        try:
            stacks = profile.recorded(on, round(shape.seconds))
        finally:
            stop.set()
            reader.join()
        used, tokens = on.cpu_seconds() - cpu, sink.counts.tokens - tokens
        sink.close()
    each = 1e6 * used / max(tokens, 1)
    parts = {part: share * each for part, share in profile.shares(stacks).items()}
    return {"cpu_us_per_token": each, "by_part_us": parts}


def _drain(sink: Sink, stop: threading.Event) -> None:
    while not stop.is_set():
        sink.read(time.perf_counter() + 0.1)


def over_grpc(shape: Shape, *, one_session: bool) -> dict[str, float]:
    """Tokens a second over one Session, or over as many calls of Generate as there are streams."""
    pin(OTHER_CORE)
    with rig(workers=shape.workers, step_ms=0.0) as on:
        cpu, began = on.cpu_seconds(), time.perf_counter()
        found = asyncio.run(
            session.rates(
                on.grpc, streams=shape.streams, session=one_session, warm_s=SETTLING_S + 1.0, seconds=shape.seconds
            )
        )
        busy = (on.cpu_seconds() - cpu) / (time.perf_counter() - began)
    return {**found, "router_core_busy": busy, "tokens_per_message": found["tokens_per_s"] / found["messages_per_s"]}


def first_tokens(tokens_per_s: float, shape: Shape, *, probes_per_s: float, length: int) -> dict[str, float]:
    """What the router adds to the first token while its streams carry so many tokens a second: beside them requests of `length` tokens come
    as a Poisson process, to each of which workers give the first token at once.
    """
    pin(OTHER_CORE)
    arrivals = random.Random(0)
    with rig(workers=shape.workers, step_ms=1000 * shape.streams / tokens_per_s) as on:
        sink = _opened(on, shape, ENDLESS)
        sink.read(time.perf_counter() + SETTLING_S)
        before, tokens, cpu = len(sink.firsts), sink.counts.tokens, on.cpu_seconds()
        began = due = time.perf_counter()
        while (now := time.perf_counter()) < began + shape.seconds:
            if now >= due:
                sink.ask(length)
                due += arrivals.expovariate(probes_per_s)
            sink.read(min(due, began + shape.seconds))
        took, used, tokens = time.perf_counter() - began, on.cpu_seconds() - cpu, sink.counts.tokens - tokens
        firsts = sorted(1000 * each for each in sink.firsts[before:])
        sink.close()
    return {
        "tokens_per_s": tokens / took,
        "probes": float(len(firsts)),
        "added_ttft_p50_ms": percentile(firsts, 50),
        "added_ttft_p99_ms": percentile(firsts, 99),
        "added_ttft_max_ms": firsts[-1],
        "router_core_busy": used / took,
    }


def many(shape: Shape, *, length: int, step_ms: float) -> dict[str, Any]:
    """Many streams at once, each asked again as it ends: the router's resident size over time."""
    pin(OTHER_CORE)
    lengths = random.Random(0)
    with rig(workers=shape.workers, step_ms=step_ms) as on:
        idle = on.resident()
        sink = _opened(on, shape, length)
        sizes = [on.resident()]
        tokens, began = sink.counts.tokens, time.perf_counter()
        next_look = began + 1.0
        for ended in sink.read_for(shape.seconds):
            for _ in range(ended):
                sink.ask(lengths.randint(length // 2, 3 * length // 2))
            if time.perf_counter() >= next_look:
                next_look += 1.0
                sizes.append(on.resident())
        took = time.perf_counter() - began
        tokens, ended = sink.counts.tokens - tokens, sink.counts.ended
        sink.close()
    return {
        "tokens_per_s": tokens / took,
        "streams": shape.streams,
        "requests_ended": ended,
        **_memory(idle, sizes, shape.streams),
    }


def _memory(idle: int, sizes: Sequence[int], streams: int) -> dict[str, Any]:
    """Resident megabytes; `growth` compares the last third of the time with the middle one."""
    third = len(sizes) // 3
    middle, last = statistics.mean(sizes[third : 2 * third]), statistics.mean(sizes[-third:])
    return {
        "idle_mb": idle / _MB,
        "middle_third_mb": middle / _MB,
        "last_third_mb": last / _MB,
        "growth": last / middle - 1.0,
        "kb_per_stream": (last - idle) / 1e3 / streams,
        "sizes_mb": [round(size / _MB, 1) for size in sizes],
    }
