"""Steps recorded once and started as a whole: what launching costs the host is paid once a size.

The one place, beside the queue, that knows of CUDA graphs.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

_LOG = logging.getLogger("octavo.worker")
_LEAST_LONGEST = 512  # positions: below, one recording serves all
Body = Callable[[torch.Tensor], torch.Tensor]


class GraphKey(NamedTuple):
    """The size of a recorded step: `rows` sequences that decode one token each, none of them longer than `longest`; `kind` is what else
    decides its launches (kernels.prepare.staged.Staged).
    """

    rows: int
    longest: int
    kind: tuple[int, ...] = ()


def key_of(rows: int, longest: int, *, most_rows: int, most_longest: int) -> GraphKey | None:
    """The recording that serves a step of `rows` decodes whose longest sequence is `longest`; None where it has too many rows.

    Rows go by 1, 2, 4, then by 8 up to 64, 16 up to 128 and 32 beyond; lengths by powers of two.
    """
    if rows > most_rows:
        return None
    reach = _LEAST_LONGEST
    while reach < longest:
        reach *= 2
    return GraphKey(min(_rows(rows), most_rows), min(reach, most_longest))


def _rows(rows: int) -> int:
    if rows <= 4:
        return rows if rows != 3 else 4
    step = 8 if rows <= 64 else 16 if rows <= 128 else 32
    return -(-rows // step) * step


class Graphs(Protocol):
    """Runs the body of a step that has a key."""

    def run(self, key: GraphKey, inputs: torch.Tensor, body: Body) -> torch.Tensor:
        """What `body(inputs)` gives, valid until the next `run`. `inputs` uint8 are all that differs between steps of one key."""


class CudaGraphs:
    """A Graphs: the first step of a key runs as it is, which compiles and places what it needs; the second is recorded, and from then on
    the recording runs. All recordings share one pool of memory: they never run at the same time. A key that cannot be recorded (memory
    ran out, say) runs as it is from then on.
    """

    def __init__(self) -> None:
        self._met: set[GraphKey] = set()
        self._refused: set[GraphKey] = set()
        self._held: dict[GraphKey, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.bytes = 0  # that recordings took from the device

    def run(self, key: GraphKey, inputs: torch.Tensor, body: Body) -> torch.Tensor:
        """See Graphs."""
        if key not in self._met or key in self._refused:
            self._met.add(key)
            return body(inputs)
        if key not in self._held:
            try:
                self._held[key] = self._record(inputs, body)
            except (
                RuntimeError
            ):  # recording computed nothing, so the step is whole; where the device is lost, it fails now
                _LOG.warning("steps of %s are not recorded", key, exc_info=True)
                self._refused.add(key)
                return body(inputs)
        graph, fixed, found = self._held[key]
        fixed.copy_(inputs)
        graph.replay()
        return found

    def _record(self, inputs: torch.Tensor, body: Body) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        before = torch.cuda.memory_reserved()
        fixed, graph = inputs.clone(), torch.cuda.CUDAGraph()
        # Other threads load adapters meanwhile: what they ask of the driver is no fault of the recording.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        ):
            found = body(fixed)
        self.bytes += max(0, torch.cuda.memory_reserved() - before)
        return graph, fixed, found
