"""The worker's metrics, each defined once."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from worker.adaptermetrics import AdapterMetrics
from worker.engine import Report

_PREFIX = "octavo_worker_"
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


@dataclass(frozen=True, kw_only=True)
class WorkerMetrics:
    """Made by `make` in a registry of its owner's."""

    running: Gauge
    waiting: Gauge
    blocks: Gauge
    total_blocks: Gauge
    routers: Gauge
    preemptions: Counter
    tokens: Counter
    finished: Counter
    rejected: Counter
    steps: Histogram
    failed_steps: Counter
    adapters: AdapterMetrics

    @classmethod
    def make(cls, registry: CollectorRegistry, up: Callable[[], bool]) -> "WorkerMetrics":
        """`up` is asked at each scrape."""

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        gauge("up", "Whether the worker serves: loaded, not draining, its engine alive and making steps").set_function(
            up
        )
        return cls(
            running=gauge("running", "Choices that hold a slot"),
            waiting=gauge("waiting", "Entries of the waiting queue"),
            blocks=gauge(
                "kv_blocks", "KV blocks of 16 tokens: free (cached ones that nothing uses included) or cached", "state"
            ),
            total_blocks=gauge("kv_blocks_capacity", "KV blocks in all"),
            routers=gauge("routers", "Streams of routers"),
            preemptions=counter("preemptions", "Choices that lost their blocks for others"),
            tokens=counter("tokens", "Tokens: computed positions, outputs, prompts, and of those cached", "kind"),
            finished=counter("finished", "Choices that ended, by reason", "reason"),
            rejected=counter("rejected", "Requests that the engine did not take or gave back, by code", "code"),
            steps=Histogram(
                _PREFIX + "step_seconds", "Time of an engine step", registry=registry, buckets=_STEP_BUCKETS
            ),
            failed_steps=counter("failed_steps", "Steps that failed as a whole"),
            adapters=AdapterMetrics(
                gauge("adapter", "1 for each adapter, by the level that it is at", "adapter", "level"),
                gauge("adapters", "Adapters that are known: at their source, in host memory, on the device", "level"),
                gauge("adapter_host_bytes", "Bytes of adapters in host memory"),
            ),
        )

    def observe(self, report: Report, preempted: int) -> None:
        """Count a report in; `preempted` are the preemptions since the one before."""
        self.preemptions.inc(preempted)
        self._state(report)
        self._step(report)
        for _, end in report.output.finished:
            self.finished.labels(end.reason.value).inc()
            self.tokens.labels("prompt").inc(end.prompt_tokens)
            self.tokens.labels("cached").inc(end.cached_tokens)
        for _, rejected in report.output.rejected:
            self.rejected.labels(rejected.code.value).inc()

    def _state(self, report: Report) -> None:
        stats = report.stats
        self.running.set(stats.running)
        self.waiting.set(stats.waiting)
        self.blocks.labels("free").set(stats.free_blocks)
        self.blocks.labels("cached").set(stats.cached_blocks)
        self.total_blocks.set(stats.total_blocks)

    def _step(self, report: Report) -> None:
        outputs = sum(len(delta.tokens) for _, delta in report.output.deltas)
        if outputs:
            self.tokens.labels("output").inc(outputs)
        step = report.step
        if step is None:
            return
        self.steps.observe(step.seconds)
        self.tokens.labels("computed").inc(step.computed)
        if step.failed:
            self.failed_steps.inc()
