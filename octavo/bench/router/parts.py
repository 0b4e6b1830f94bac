"""The parts of `octavo bench router`, each of which can be measured alone."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.bench.router import decision, memory, streams
from octavo.bench.router.streams import Shape

LENGTH = 128  # tokens of a request, of many streams
SLOW_MS = 200.0  # between two tokens of one request, of many streams
PROBES_PER_S, PROBE = 30.0, 16  # requests beside streams, whose first tokens are measured, and their tokens
Found = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """As `octavo bench router` has them."""

    streams: int
    seconds: int
    workers: int
    rate: int | None
    many: int
    prompts: int

    @property
    def shape(self) -> Shape:
        """Of the parts that saturate the router."""
        return Shape(streams=self.streams, workers=self.workers, seconds=self.seconds)


def _decision(settings: Settings, before: Found) -> Any:
    """64 workers: prompts of 4k and 128k tokens."""
    del settings, before
    return {
        "4k": decision.decisions(workers=64, tokens=4_096, prompts=24, rounds=400),
        "128k": decision.decisions(workers=64, tokens=131_072, prompts=4, rounds=100),
    }


def _memory(settings: Settings, before: Found) -> Any:
    """Hashing, the loop beside it, and the index after a tenth and all of the prompts."""
    del before
    looks = [max(1, settings.prompts // 10), settings.prompts]
    return {
        "hashing": [memory.hashing(4_096, 50), memory.hashing(131_072, 10)],
        "beside_hashing": memory.loop_gaps(131_072, 30),
        "index": memory.unique_prompts(looks),
    }


def _events(settings: Settings, before: Found) -> Any:
    """Every token an event of its own."""
    del before
    return streams.saturated(settings.shape, coalesce_ms=0.0)


def _tokens(settings: Settings, before: Found) -> Any:
    """As the router comes."""
    del before
    return streams.saturated(settings.shape)


def _session(settings: Settings, before: Found) -> Any:
    del before
    return streams.over_grpc(settings.shape, one_session=True)


def _generate(settings: Settings, before: Found) -> Any:
    del before
    return streams.over_grpc(settings.shape, one_session=False)


def _ttft(settings: Settings, before: Found) -> Any:
    """At half of the most that was measured."""
    rate = settings.rate or before.get("tokens", {}).get("tokens_per_s", 40_000.0) / 2
    return streams.first_tokens(rate, settings.shape, probes_per_s=PROBES_PER_S, length=PROBE)


def _streams(settings: Settings, before: Found) -> Any:
    del before
    shape = Shape(streams=settings.many, workers=settings.workers, seconds=6.0 * settings.seconds)
    return streams.many(shape, length=LENGTH, step_ms=SLOW_MS)


def _profile(settings: Settings, before: Found) -> Any:
    """Microseconds of processor a token, by part."""
    del before
    return streams.profiled(settings.shape)


PARTS: Mapping[str, Callable[[Settings, Found], Any]] = {
    "decision": _decision,
    "memory": _memory,
    "events": _events,
    "tokens": _tokens,
    "session": _session,
    "generate": _generate,
    "ttft": _ttft,
    "streams": _streams,
    "profile": _profile,
}


def told(name: str, found: Any) -> Iterator[str]:
    """Lines for people."""
    yield f"{name}:"
    yield from _lines(found, "  ")


def _lines(found: Any, indent: str) -> Iterator[str]:
    for key, value in found.items() if isinstance(found, Mapping) else enumerate(found):
        if isinstance(value, Mapping | list) and not (
            isinstance(value, list) and not any(isinstance(v, Mapping) for v in value)
        ):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key:<36} {_number(value)}"


def _number(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
