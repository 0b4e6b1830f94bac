"""Puts the router's inside together. The edges need only this and router.service."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from router import metrics as router_metrics
from router.adapters.keeper import Keeper
from router.adapters.names import Names
from router.adapters.operator import Operator
from router.adapters.places import Places
from router.adapters.registry import Registry
from router.adapters.reports import Reports
from router.dispatch import RouterService
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.settings import DispatchSettings
from router.fleet.discovery import Where, where
from router.fleet.fleet import Fleet
from router.fleet.settings import LinkSettings
from router.fleet.tokenizers import default_cache
from router.placement import LOOKS_AT_PREFIXES
from router.tenancy.admission import Admission, OpenAdmission
from router.tenancy.metrics import TenantMetrics
from router.tenancy.records import PrefixRecord


async def start_service(
    targets: Sequence[str] | Where,
    *,
    registry: CollectorRegistry,
    dispatch: DispatchSettings | None = None,
    link: LinkSettings | None = None,
    cache: Path | None = None,
    admission: Admission | None = None,
    tenants: CollectorRegistry | None = None,
    prefixes: Callable[[], Sequence[PrefixRecord]] = tuple,
    adapters: Registry | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RouterService:
    """A service over the workers at `targets`: host:port or dns:///name:port each, or whatever tells of them. Close it with `aclose`.

    `admission` lets requests in (by default all); `tenants` gets the metrics that name them; `prefixes` gives the public ones;
    `adapters` knows those that were loaded at run time (by default what workers tell). `cache` is where tokenizers are kept (by default
    $OCTAVO_CACHE/tokenizers). To be called in the loop that serves.
    """
    settings = dispatch or DispatchSettings()
    metrics = router_metrics.build(registry)
    fleet = Fleet(
        targets if isinstance(targets, Where) else where(targets),
        settings=link or LinkSettings(),
        clock=clock,
        cache=cache or default_cache(os.environ),
        workers_gauge=metrics.workers,
        kv_events=settings.policy in LOOKS_AT_PREFIXES,
    )
    known = adapters or Registry()
    keeper = Keeper(fleet, known)
    names = Names(fleet, known, keeper.why_nowhere)
    dispatcher = Dispatcher(fleet, Places(names, clock), settings=settings, metrics=metrics, clock=clock)
    fleet.start(dispatcher.pump)
    keeper.start()
    return RouterService(
        fleet,
        dispatcher,
        settings=settings,
        metrics=metrics,
        clock=clock,
        admission=admission or OpenAdmission(),
        tenants=TenantMetrics(tenants or CollectorRegistry()),
        prefixes=prefixes,
        names=names,
        keeper=keeper,
        operator=Operator(fleet, known, Reports(fleet, known, keeper)),
    )
