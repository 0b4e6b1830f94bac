"""Which pool a link belongs to, as its worker changes and its target vanishes."""

import dataclasses
import time

from prometheus_client import CollectorRegistry, Gauge

from octavo.bench.router import decision
from router.fleet.discovery import Where
from router.fleet.fleet import Fleet, PoolKey, pool_key
from router.fleet.link import Connected, WorkerLink
from router.fleet.settings import LinkSettings


def empty() -> Fleet:
    gauge = Gauge("workers", "By state.", ["state"], registry=CollectorRegistry())
    return Fleet(Where(), settings=LinkSettings(), clock=time.monotonic, cache=None, workers_gauge=gauge)


def serve(link: WorkerLink, model: str) -> PoolKey:
    assert link.worker is not None
    info = dataclasses.replace(link.worker.info, model=model)
    link.worker = Connected(info=info, text=link.worker.text, stream=link.worker.stream)
    return pool_key(info)


def pools(fleet: Fleet) -> dict[str, int]:
    return {pool.key.model: pool.workers for pool in fleet.pools()}


def test_a_link_belongs_to_the_pool_of_the_worker_that_it_has_now() -> None:
    fleet, (first, second) = empty(), decision.fleet(2).links
    one, other = serve(first, "one"), serve(first, "other")
    assert not fleet.serves(one)
    serve(first, "one")
    for link in (first, second):
        serve(link, "one")
        fleet.joined(link)
    assert fleet.candidates(one) == [first, second]
    serve(second, "other")
    fleet.joined(second)
    assert (fleet.candidates(one), fleet.candidates(other)) == ([first], [second])
    assert pools(fleet) == {"one": 1, "other": 1}
    fleet.joined(second)  # again: it is counted once
    assert fleet.candidates(other) == [second]
    first.worker = None
    assert not fleet.serves(one)
    assert pools(fleet) == {"other": 1}
    fleet._gone(second)
    fleet._gone(second)
    assert (fleet.candidates(other), pools(fleet)) == ([], {})
