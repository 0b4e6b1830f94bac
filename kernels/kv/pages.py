"""Memory of a KV pool, had from the system before a step needs it.

Memory that nobody has touched costs its first user a page fault, and a block lies in as many places as there are layers: one step would
meet all of those faults at once. But a pool is as large as the KV that the machine could hold, and most of it is never used: so memory is
touched a little ahead of the blocks that steps name, by a thread of low priority.
"""

import os
import threading
from collections.abc import Callable

_AHEAD = 64 << 20  # bytes beyond the last block in use, over all layers
_LEAST = 64  # blocks


class PagesAhead:
    """`touch(first, last)` makes the system give the memory of blocks `first` .. `last - 1`. `reached` is called by one thread."""

    def __init__(self, touch: Callable[[int, int], None], *, blocks: int, block_bytes: int):
        self._touch = touch
        self._blocks = blocks
        self._ahead = max(_LEAST, _AHEAD // block_bytes)
        self._asked = 0  # blocks that a thread has been told of
        self._thread: threading.Thread | None = None

    def reached(self, block: int) -> None:
        """A step names that block, and none beyond it."""
        if block + self._ahead // 2 < self._asked or self._asked == self._blocks:
            return
        if self._thread is not None and self._thread.is_alive():
            return  # a later step will ask again
        first, self._asked = self._asked, min(self._blocks, block + self._ahead)
        self._thread = threading.Thread(target=self._run, args=(first, self._asked), name="kv-pages", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait for what has been asked."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, first: int, last: int) -> None:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        self._touch(first, last)
