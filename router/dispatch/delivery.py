"""From the loop that hears the workers to one reader: pieces wait here, bounded, and go out flush by flush."""

import asyncio
from collections.abc import AsyncIterator

from router.request import Piece
from shared.errors import OctavoError


class Delivery:
    """Holds at most `limit` pieces. It ends once: whole, or by an error after which nothing more is given."""

    def __init__(self, limit: int):
        self._limit = limit
        self._pieces: list[Piece] = []
        self._ready = asyncio.Event()
        self._over = False
        self._error: OctavoError | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, read or not."""
        return self._over

    def put(self, piece: Piece) -> bool:
        """One piece; False where the reader is too far behind."""
        if len(self._pieces) >= self._limit:
            return False
        self._pieces.append(piece)
        self._ready.set()
        return True

    def end(self, error: OctavoError | None = None) -> None:
        """No more will come. The first end counts. Pieces before an end without error are still read; before an error, too."""
        if not self._over:
            self._over, self._error = True, error
            self._ready.set()

    async def flushes(self) -> AsyncIterator[tuple[Piece, ...]]:
        """All that waits, as soon as something does. Raises the error that ended it."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._pieces:
                pieces, self._pieces = tuple(self._pieces), []
                yield pieces
            if self._over and not self._pieces:
                break
        self._ready.set()  # a second reader ends at once
        if self._error is not None:
            raise self._error
