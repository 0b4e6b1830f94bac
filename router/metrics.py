"""Every metric of the router, defined once. Names and units follow Prometheus' conventions; times are in seconds."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_MODEL = ("model",)


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterMetrics:
    """One router process's metrics; `model` is the served name."""

    requests: Counter  # model, outcome: ok, cancelled, or an error's code
    in_flight: Gauge  # model
    queued: Gauge  # model
    ttft: Histogram  # model
    itl: Histogram  # model
    e2e: Histogram  # model
    prompt_tokens: Counter  # model
    output_tokens: Counter  # model
    cached_tokens: Counter  # model
    overshoot_tokens: Counter  # model
    resubmits: Counter  # model, reason: lost, or a rejection's code
    resumed: Counter  # model, numerics: exact or inexact
    resume_gap: Histogram  # model
    aborts: Counter  # reason
    workers: Gauge  # state


def build(registry: CollectorRegistry) -> RouterMetrics:
    """All metrics, registered with `registry`."""

    def counter(name: str, text: str, labels: tuple[str, ...] = _MODEL) -> Counter:
        return Counter(f"octavo_router_{name}", text, labels, registry=registry)

    def gauge(name: str, text: str, labels: tuple[str, ...] = _MODEL) -> Gauge:
        return Gauge(f"octavo_router_{name}", text, labels, registry=registry)

    def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"octavo_router_{name}_seconds", text, _MODEL, registry=registry, buckets=buckets)

    return RouterMetrics(
        requests=counter("requests", "Requests that have ended, by outcome", ("model", "outcome")),
        in_flight=gauge("requests_in_flight", "Requests admitted and not ended"),
        queued=gauge("requests_queued", "Requests that wait in the router for a worker's credit"),
        ttft=histogram("ttft", "From a request's arrival to its first token", _SLOW),
        itl=histogram("itl", "Between two tokens of one choice", _FAST),
        e2e=histogram("e2e", "From a request's arrival to its end", _SLOW),
        prompt_tokens=counter("prompt_tokens", "Prompt tokens of requests that were dispatched"),
        output_tokens=counter("output_tokens", "Output tokens counted in usage"),
        cached_tokens=counter("cached_tokens", "Prompt tokens that a prefix cache held"),
        overshoot_tokens=counter("overshoot_tokens", "Output tokens made after a stop string, counted in no usage"),
        resubmits=counter("resubmits", "Requests given to another worker, by reason", ("model", "reason")),
        resumed=counter("resumed", "Requests that went on at another worker, by numerics", ("model", "numerics")),
        resume_gap=histogram("resume_gap", "Between two tokens of one choice that came from different workers", _SLOW),
        aborts=counter("aborts", "Choices aborted, by reason", ("reason",)),
        workers=gauge("workers", "Workers, by state", ("state",)),
    )
