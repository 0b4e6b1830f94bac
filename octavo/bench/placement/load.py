"""The load at which one policy's p99 of TTFT has doubled: there a better one has something to show, and nothing has broken down yet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.placement.measures import percentile
from octavo.bench.placement.simulation import Setup, simulate
from octavo.bench.placement.trace import Arrival, faster
from router.placement.view import Policy

UNLOADED = 0.5  # times the trace's own speed: what TTFT is without a load to speak of
MOST = 8.0  # the fastest that is tried
CLOSE = 1.1  # speeds within this factor are equal


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubling:
    """`speed` is times the trace's own; the TTFTs are p99, in seconds."""

    speed: float
    unloaded_ttft_p99: float
    ttft_p99: float


def p99(arrivals: Sequence[Arrival], policy: Policy, setup: Setup, speed: float) -> float:
    """Of TTFT, in seconds."""
    outcomes = simulate(faster(arrivals, speed), policy, setup).outcomes
    return percentile([outcome.ttft for outcome in outcomes], 0.99)


def doubling(arrivals: Sequence[Arrival], policy: Policy, setup: Setup) -> Doubling:
    """The least speed at which it has doubled, to within CLOSE; MOST where it never does."""
    unloaded = p99(arrivals, policy, setup, UNLOADED)
    low, high, found = UNLOADED, UNLOADED, unloaded
    while found < 2 * unloaded and high < MOST:
        low, high = high, 2 * high
        found = p99(arrivals, policy, setup, high)
    while high / low > CLOSE and found >= 2 * unloaded:
        middle = math.sqrt(low * high)
        there = p99(arrivals, policy, setup, middle)
        if there >= 2 * unloaded:
            high, found = middle, there
        else:
            low = middle
    return Doubling(speed=high, unloaded_ttft_p99=unloaded, ttft_p99=found)
