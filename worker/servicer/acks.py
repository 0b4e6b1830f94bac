"""Which Submits of a stream have been taken."""

from shared.errors import InvalidRequest


class Acks:
    """`acked` is the highest number up to which every Submit that came has been taken, be it by the engine or by a Reject."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, None] = {}  # in the order in which they came, which is theirs

    def came(self, seq: int) -> None:
        """Raises InvalidRequest unless `seq` is over all that came before."""
        if seq <= self._last:
            raise InvalidRequest(f"Submit {seq} after Submit {self._last}: seq must increase", param="seq")
        self._last = seq
        self._open[seq] = None

    @property
    def last(self) -> int:
        """The number of the last that came; 0 before the first."""
        return self._last

    def taken(self, seq: int) -> None:
        """It is known to whoever answers it."""
        self._open.pop(seq, None)

    @property
    def acked(self) -> int:
        """0 before the first."""
        return next(iter(self._open)) - 1 if self._open else self._last
