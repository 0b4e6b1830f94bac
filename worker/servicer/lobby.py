"""Submits that are whole and wait until the version of their adapter is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from shared.errors import OctavoError
from shared.types import TokenRequest
from worker.servicer.assembly import Partial


class Lobby:
    """One stream's. Times are of `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._waiting: dict[int, Partial] = {}  # by seq
        self._since: dict[int, float] = {}
        self._closed = False

    def enter(
        self, partial: Partial, found: Callable[[Partial, OctavoError | None], None]
    ) -> Callable[[OctavoError | None], None]:
        """It waits until what is returned is called; then `found` is told, unless the stream is over by then."""
        seq = partial.submit.seq
        self._waiting[seq] = partial
        self._since.setdefault(seq, self._clock())

        def done(error: OctavoError | None) -> None:
            if self._closed:
                return
            del self._waiting[seq]
            found(partial, error)
            if seq not in self._waiting:
                del self._since[seq]

        return done

    def aged(self, request: TokenRequest) -> TokenRequest:
        """With what is left of its time."""
        since = self._since.get(request.seq)
        if since is None or request.remaining_ms is None:
            return request
        gone = int(1000 * (self._clock() - since))
        return replace(request, remaining_ms=max(0, request.remaining_ms - gone))

    def holding(self, handles: Sequence[int]) -> list[Partial]:
        """Those with one of these choices that are not answered."""
        asked = set(handles)
        return [partial for partial in self._waiting.values() if not partial.void and asked & partial.handles]

    def close(self) -> None:
        """The stream is over."""
        self._closed = True
