"""From an executor to a worker that serves."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from shared.tokenizer import TokenizerBundle
from shared.types import WorkerInfo
from worker.adapters.orders import Orders
from worker.adapters.service import AdapterService
from worker.adapters.version import AdapterParts
from worker.engine import AsyncEngine, Engine
from worker.metrics import WorkerMetrics
from worker.plan import Executor
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.scheduler import Scheduler
from worker.scheduler.steptime import StepTimes
from worker.servicer.hub import Hub
from worker.servicer.servicer import Loaded
from worker.servicer.settings import StreamSettings


def _nothing() -> None:
    """An executor that holds nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What is specific to a model: `scheduler.depth` is the executor's, `times` what is known of its steps.

    `close` ends the executor, once its engine has ended.
    """

    executor: Executor
    scheduler: SchedulerConfig
    info: WorkerInfo
    tokenizer: TokenizerBundle
    times: StepTimes | None = None
    adapters: AdapterParts | None = None
    close: Callable[[], None] = _nothing


def assemble(
    parts: Parts,
    *,
    metrics: WorkerMetrics,
    drain_seconds: float,
    check: bool = False,
    settings: StreamSettings | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Loaded:
    """A worker whose engine is started. Must be called inside the event loop that serves."""
    orders = Orders(parts.adapters) if parts.adapters else None
    scheduler = Scheduler(
        parts.scheduler, parts.info.total_blocks, started_at=clock(), times=parts.times, loader=orders
    )
    engine = AsyncEngine(Engine(scheduler, parts.executor, clock), clock=clock, check=check)
    hub = Hub(
        engine,
        parts.info,
        max_waiting=parts.scheduler.max_waiting,
        metrics=metrics,
        settings=settings or StreamSettings(),
        clock=clock,
    )
    if parts.adapters and orders:
        hub.adapters = AdapterService(parts.adapters, orders, engine, hub.adapters_changed)
    hub.start()
    return Loaded(hub=hub, tokenizer=parts.tokenizer, drain_seconds=drain_seconds)
