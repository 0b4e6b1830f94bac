"""What is to be told since the last time anything was."""

from shared.types import Finished, Rejected, TokenDelta
from worker.events import KvChange, StepOutput


class Outbox:
    """Gathers a StepOutput."""

    def __init__(self) -> None:
        self._deltas: list[tuple[int, TokenDelta]] = []
        self._finished: list[tuple[int, Finished]] = []
        self._rejected: list[tuple[int, Rejected]] = []

    def delta(self, stream: int, delta: TokenDelta) -> None:
        """New tokens."""
        self._deltas.append((stream, delta))

    def finished(self, stream: int, finished: Finished) -> None:
        """A choice's end."""
        self._finished.append((stream, finished))

    def rejected(self, stream: int, rejected: Rejected) -> None:
        """A request that was not taken."""
        self._rejected.append((stream, rejected))

    def drop_stream(self, stream: int) -> None:
        """Nothing more goes there."""
        self._deltas = [item for item in self._deltas if item[0] != stream]
        self._finished = [item for item in self._finished if item[0] != stream]
        self._rejected = [item for item in self._rejected if item[0] != stream]

    def take(self, kv: KvChange) -> StepOutput:
        """All of it, together with the KV cache's changes."""
        output = StepOutput(
            deltas=tuple(self._deltas), finished=tuple(self._finished), rejected=tuple(self._rejected), kv=kv
        )
        self._deltas, self._finished, self._rejected = [], [], []
        return output
