"""What is asked of the engine: which adapter each request takes, and when requests come."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from octavo.bench.adapters.engine import Ask
from octavo.bench.workload import Item

RUNNING = 64  # requests at a time, the worker's default
SKEW = 1.0
_CASE = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`distinct` adapters on `slots` device slots. Where they all fit, requests take them in turn and as many run at a time, so that a
    step's rows are all of different ones (one adapter serves all rows); else requests draw them by Zipf's law (exponent SKEW).
    """

    distinct: int
    slots: int

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"{self.distinct}/{self.slots}"

    @property
    def running(self) -> int:
        """Requests at a time."""
        return self.distinct if 1 < self.distinct <= self.slots else RUNNING

    def adapters(self, count: int, seed: int) -> list[int]:
        """The adapter of each of `count` requests."""
        if self.distinct <= self.slots:
            return [number % self.distinct for number in range(count)]
        return drawn(self.distinct, count, skew=SKEW, seed=seed)


def parsed(text: str) -> Case:
    """Of "128/16". Raises ValueError."""
    match = _CASE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no case such as 128/16: distinct adapters / device slots")
    return Case(distinct=int(match[1]), slots=int(match[2]))


def drawn(distinct: int, count: int, *, skew: float, seed: int) -> list[int]:
    """`count` numbers below `distinct`; number k comes in proportion to 1 / (k + 1)^skew. The same for the same seed."""
    weights = list(accumulate(1 / (number + 1) ** skew for number in range(distinct)))
    return random.Random(seed).choices(range(distinct), cum_weights=weights, k=count)


def at_once(items: Sequence[Item], adapters: Sequence[int] | None) -> list[Ask]:
    """All at the start; of the base alone where there are no `adapters`."""
    if adapters is None:
        return [Ask(item=item) for item in items]
    return [Ask(item=item, adapter=adapter) for item, adapter in zip(items, adapters, strict=True)]


def arriving(items: Sequence[Item], *, distinct: int, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals of `rate` a second for `seconds`; each takes any of `distinct` adapters. With another number of adapters the same
    items come at the same moments.
    """
    moments, which, at = random.Random(seed), random.Random(seed + 1), 0.0
    asks: list[Ask] = []
    while (at := at + moments.expovariate(rate)) < seconds:
        asks.append(Ask(item=items[len(asks) % len(items)], adapter=int(which.random() * distinct), at=at))
    return asks
