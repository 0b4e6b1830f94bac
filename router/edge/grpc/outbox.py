"""A session's way out: events of all its requests in order, as few messages as they allow."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from protos import inference_pb2 as pb

EVENTS = 1_024  # waiting, before producers are made to wait
MESSAGE_BYTES = 1 << 20  # aimed at; an event that is larger alone goes alone

Write = Callable[[Sequence[pb.SessionEvent]], Awaitable[None]]


class Outbox:
    """Bounded for `put`; `put_last` always takes its event, so that nothing can lose a request's end."""

    def __init__(self) -> None:
        self._events: deque[pb.SessionEvent] = deque()
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    async def put(self, event: pb.SessionEvent) -> None:
        """Appends an event, once there is room."""
        while len(self._events) >= EVENTS:
            self._room.clear()
            await self._room.wait()
        self.put_last(event)

    def put_last(self, event: pb.SessionEvent) -> None:
        """Appends an event at once: the caller puts at most one a request."""
        self._events.append(event)
        self._filled.set()

    def close(self) -> None:
        """Ends `drain` once all is written."""
        self._closed = True
        self._filled.set()

    async def drain(self, write: Write) -> None:
        """Writes until closed. All that gathered while the last message was written goes into the next one."""
        while True:
            await self._filled.wait()
            while self._events:
                batch = self._cut()
                self._room.set()
                await write(batch)
            if self._closed:
                return
            self._filled.clear()

    def _cut(self) -> list[pb.SessionEvent]:
        batch, size = [self._events.popleft()], 0
        size = batch[0].ByteSize()
        while self._events and (size := size + self._events[0].ByteSize()) <= MESSAGE_BYTES:
            batch.append(self._events.popleft())
        return batch
