"""What one router is told of the worker's adapters: the whole catalog first, then names of which something has changed.

What is told of a name is looked up when its frame's turn comes, so that a slow router hears of the newest alone.
"""

from collections import deque
from collections.abc import Callable, Iterable

from protos import worker_pb2 as pb
from shared.types import AdapterInfo, AdapterState
from shared.wire import adapters as wire


class AdapterFeed:
    """One stream's. `info` tells what a name is now, None where there is none."""

    def __init__(self, catalog: Iterable[AdapterInfo], info: Callable[[str], AdapterInfo | None]):
        self._info = info
        self._frames = deque(wire.adapter_state_to_pb(AdapterState(entries=tuple(catalog), complete=True)))
        self._changed: dict[str, None] = {}

    def changed(self, names: Iterable[str]) -> None:
        """Something about these."""
        self._changed.update(dict.fromkeys(names))

    def next(self) -> pb.Down | None:
        """The next frame: all of the first view before what has changed since."""
        if not self._frames and self._changed:
            self._frames.extend(wire.adapter_state_to_pb(self._state()))
        return self._frames.popleft() if self._frames else None

    def _state(self) -> AdapterState:
        names, self._changed = self._changed, {}
        infos = {name: self._info(name) for name in names}
        return AdapterState(
            entries=tuple(info for info in infos.values() if info is not None),
            removed=tuple(name for name, info in infos.items() if info is None),
        )
