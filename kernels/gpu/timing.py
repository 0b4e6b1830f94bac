"""How long launches take on a GPU."""

from collections.abc import Callable
from statistics import median

import torch

_ROUNDS = 15
_FLUSH = 256 << 20  # bytes, more than any L2


def seconds(run: Callable[[], object]) -> float:
    """The median of one run's time, with a cold L2, without what launching costs the host: replays of a recording. What `run` compiles and
    places at its first call is not in it.
    """
    run()
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return median(_replayed(graph, flush) for _ in range(_ROUNDS))


def _replayed(graph: torch.cuda.CUDAGraph, flush: torch.Tensor) -> float:
    flush.zero_()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    graph.replay()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3
