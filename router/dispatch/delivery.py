"""From the loop that hears the workers to one reader: pieces wait here, bounded, and go out flush by flush."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from router.request import Piece
from shared.errors import OctavoError


class Delivery:
    """Holds at most `limit` tokens; a piece without any counts as one, and one piece alone is always taken.

    It ends once: whole, or by an error after which nothing more is given.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._pieces: list[Piece] = []
        self._size = 0  # tokens of these
        self._ready = asyncio.Event()
        self._over = False
        self._error: OctavoError | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, read or not."""
        return self._over

    def put(self, piece: Piece) -> bool:
        """One piece; False where the reader is too far behind."""
        size = max(1, len(piece.tokens))
        if self._pieces and self._size + size > self._limit:
            return False
        self._size += size
        self._pieces.append(piece)
        self._ready.set()
        return True

    def end(self, error: OctavoError | None = None) -> None:
        """No more will come. The first end counts. Pieces before an end without error are still read; before an error, too."""
        if not self._over:
            self._over, self._error = True, error
            self._ready.set()

    async def flushes(self) -> AsyncIterator[tuple[Piece, ...]]:
        """All that waits, as soon as something does, the pieces of a choice as one. Raises the error that ended it."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            if self._pieces:
                pieces, self._pieces, self._size = self._pieces, [], 0
                yield tuple(pieces) if len(pieces) == 1 else joined(pieces)
            if self._over and not self._pieces:
                break
        self._ready.set()  # a second reader ends at once
        if self._error is not None:
            raise self._error


def joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """What each choice has got, as one piece a choice, in the order of their first pieces. None of `pieces` tells of the prompt."""
    of: dict[int, list[Piece]] = {}
    for piece in pieces:
        of.setdefault(piece.index, []).append(piece)
    return tuple(several[0] if len(several) == 1 else _one(several) for several in of.values())


def _one(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        index=pieces[0].index,
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        logprobs=tuple(row for piece in pieces for row in piece.logprobs),
        ended=pieces[-1].ended,
    )
