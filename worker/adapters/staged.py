"""Versions that were read for a name and not bound to it yet: kept for a while, so that whoever asked for them everywhere can say go."""

import asyncio

from worker.adapters.catalog import Catalog, Held

SECONDS = 60.0  # after which a version that nobody has bound leaves


class Staged:
    """Each is held as a request would hold it, once."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._kept: dict[bytes, tuple[Held, asyncio.TimerHandle]] = {}

    def keep(self, held: Held) -> None:
        """For SECONDS from now on."""
        self._catalog.hold(held)
        self.drop(held.digest)  # an earlier hold of it
        timer = asyncio.get_running_loop().call_later(SECONDS, self.drop, held.digest)
        self._kept[held.digest] = (held, timer)

    def drop(self, digest: bytes) -> None:
        """It is bound, or nobody wants it."""
        held, timer = self._kept.pop(digest, (None, None))
        if held is not None and timer is not None:
            timer.cancel()
            self._catalog.release(held)

    def close(self) -> None:
        """All of them."""
        for digest in list(self._kept):
            self.drop(digest)
