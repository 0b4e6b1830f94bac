"""The hit rate that no placement over several caches is expected to pass: one LRU cache of the summed size, used by all in turn.

It has no copies, holds nothing for requests that run, and no outputs; a prompt is in it as soon as it has come.
"""

from collections import OrderedDict
from collections.abc import Iterable

from octavo.bench.placement.trace import GRAIN, Arrival


def lru_hit_rate(arrivals: Iterable[Arrival], blocks: int) -> float:
    """Cached prompt tokens by prompt tokens, over a cache of `blocks` of GRAIN tokens. Tails are evicted before what they build on."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for arrival in arrivals:
        known = 0
        while known < len(arrival.ids) and arrival.ids[known] in cache:
            known += 1
        hits += min(GRAIN * known, arrival.prompt_tokens - 1)
        total += arrival.prompt_tokens
        for number in reversed(arrival.ids):
            cache[number] = None
            cache.move_to_end(number)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits / total if total else 0.0
