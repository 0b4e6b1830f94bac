"""What is asked of the engine: which adapter each request takes, and when requests come."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count

from octavo.bench.adapters.engine import Ask
from octavo.bench.workload import Item

RUNNING = 64  # requests at a time, the worker's default
SKEW = 1.0
_APART = 11  # tokens between the turns of one request: prompts are longer, and pairs of runs turn by less
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

    def requests(self, usual: int) -> int:
        """Of a run that has `usual` ones elsewhere: enough for each adapter to be asked for where all fit, else four times as many, so that
        what is measured is not mostly the end, where few requests are left and each waits for a slot of its own."""
        return max(usual, self.distinct) if self.distinct <= self.slots else 4 * usual

    def adapters(self, requests: int, seed: int) -> list[int]:
        """The adapter of each of so many requests."""
        if self.distinct <= self.slots:
            return [number % self.distinct for number in range(requests)]
        return drawn(self.distinct, requests, skew=SKEW, seed=seed)


def parsed(text: str) -> Case:
    """Of "128/16". Raises ValueError."""
    match = _CASE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no case such as 128/16: distinct adapters / device slots")
    return Case(distinct=int(match[1]), slots=int(match[2]))


def drawn(distinct: int, requests: int, *, skew: float, seed: int) -> list[int]:
    """So many numbers below `distinct`; number k comes in proportion to 1 / (k + 1)^skew. The same for the same seed."""
    weights = list(accumulate(1 / (number + 1) ** skew for number in range(distinct)))
    return random.Random(seed).choices(range(distinct), cum_weights=weights, k=requests)


def turned(items: Sequence[Item], turn: int) -> list[Item]:
    """The same requests with their prompts turned by so many tokens: as much work, and new to a prefix cache that knows others."""
    ends = [turn % len(item.prompt) for item in items]
    return [replace(item, prompt=item.prompt[end:] + item.prompt[:end]) for item, end in zip(items, ends, strict=True)]


def repeated(items: Sequence[Item], requests: int) -> list[Item]:
    """So many, in order and over again, each turned then: else the base alone would find again in its prefix cache what requests with
    different adapters have to compute."""
    rounds = -(-requests // len(items))
    return [item for number in range(rounds) for item in turned(items, _APART * number)][:requests]


def at_once(items: Sequence[Item], adapters: Sequence[int] | None) -> list[Ask]:
    """All at the start; of the base alone where there are no `adapters`."""
    if adapters is None:
        return [Ask(item=item) for item in items]
    return [Ask(item=item, adapter=adapter) for item, adapter in zip(items, adapters, strict=True)]


def arriving(items: Sequence[Item], *, distinct: int, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals of `rate` a second for `seconds`; each takes any of `distinct` adapters. With another number of adapters the same
    items come at the same moments; those that come again are turned.
    """
    endless = (item for turn in count() for item in turned(items, turn))
    moments, which, at = random.Random(seed), random.Random(seed + 1), 0.0
    asks: list[Ask] = []
    while (at := at + moments.expovariate(rate)) < seconds:
        asks.append(Ask(item=next(endless), adapter=int(which.random() * distinct), at=at))
    return asks
