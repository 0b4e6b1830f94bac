"""Live choices by stream and handle, and their deadlines."""

import heapq

from worker.sequence import RequestState, SequenceState

SLACK = 64  # dead deadlines that may lie about beside the live ones


class Registry:
    """Finds a sequence by (stream, handle). A handle is free again once its choice has ended."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[int, SequenceState]] = {}
        self._size = 0
        self._deadlines: list[tuple[float, int, RequestState]] = []

    def __len__(self) -> int:
        return self._size

    def has(self, stream: int, handle: int) -> bool:
        """Whether the handle is in use."""
        return handle in self._streams.get(stream, ())

    def find(self, stream: int, handle: int) -> SequenceState | None:
        """The live choice of this handle."""
        return self._streams.get(stream, {}).get(handle)

    def of_stream(self, stream: int) -> list[SequenceState]:
        """A stream's live choices."""
        return list(self._streams.get(stream, {}).values())

    def add(self, seq: SequenceState) -> None:
        """Its handle must be free."""
        handles = self._streams.setdefault(seq.request.stream, {})
        assert seq.choice.handle not in handles
        handles[seq.choice.handle] = seq
        self._size += 1

    def remove(self, seq: SequenceState) -> None:
        """It has ended."""
        handles = self._streams[seq.request.stream]
        del handles[seq.choice.handle]
        if not handles:
            del self._streams[seq.request.stream]
        self._size -= 1

    def watch(self, request: RequestState) -> None:
        """Let `expired` give it when its deadline, if it has one, has come."""
        if request.deadline is None:
            return
        if len(self._deadlines) > 2 * self._size + SLACK:
            self._deadlines = [item for item in self._deadlines if item[2].live]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (request.deadline, request.order, request))

    def expired(self, now: float) -> list[SequenceState]:
        """Live choices whose deadline has come, each given once."""
        found: list[SequenceState] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            states = (self.find(request.stream, choice.handle) for choice in request.spec.choices)
            found.extend(seq for seq in states if seq is not None and seq.request is request)
        return found

    def all(self) -> list[SequenceState]:
        """Every live choice."""
        return [seq for handles in self._streams.values() for seq in handles.values()]
