"""One connection to one worker: what was sent on it, what came back, and what it still owes.

Handles and sequence numbers belong to a connection and die with it. A *ticket* is one Submit; its sink hears everything about it, on the
event loop, in the order in which it came. After a ticket is closed, or a choice has finished, late frames about it are dropped.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from protos import worker_pb2 as pb
from router.adapters.view import WorkerAdapters
from router.fleet.breaker import Breaker
from router.fleet.liveness import Liveness
from router.fleet.outbound import Outbound
from router.fleet.sanity import believed
from router.placement.cursor import KvCursor
from router.placement.unseen import Unseen
from router.placement.view import Share
from shared.types import AbortReason, Choice, Finished, FinishReason, Load, Rejected, TokenDelta, TokenRequest
from shared.wire import worker as wire
from shared.wire.adapters import adapter_state_from_pb

MOST_UNWRITTEN = 8  # Submits


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A worker is gone, or as good as gone; `suspects` are the requests there that had no token from it: one of them may be why.

    None is where it was `expected`: the worker had said that it would stop.
    """

    message: str
    suspects: int
    expected: bool = False


class Sink(Protocol):
    """Hears of one Submit. Calls must be quick and must not raise. `accepted` may come late or never; `rejected` and `lost` end it all."""

    def accepted(self) -> None:
        """The worker has acknowledged it."""

    def tokens(self, delta: TokenDelta) -> None:
        """New tokens of one choice."""

    def finished(self, finished: Finished) -> None:
        """The end of one choice."""

    def rejected(self, rejected: Rejected) -> None:
        """The worker did not take it, or gave it back."""

    def lost(self, loss: Loss) -> None:
        """The worker is gone, or as good as gone."""


@dataclass(kw_only=True, slots=True, eq=False)
class Ticket:
    """One Submit. `open` are the handles that have not finished; `progressed` says whether any had a token."""

    stream: "WorkerStream"
    seq: int
    handles: tuple[int, ...]
    sink: Sink
    open: set[int] = field(default_factory=set)
    progressed: bool = False

    def abort(self, handles: Sequence[int], reason: AbortReason) -> None:
        """Ask the worker to end these choices; their Finish still comes."""
        self.stream.abort(self, handles, reason)

    def close(self, reason: AbortReason) -> int:
        """Abort what is open and hear no more of it. Returns how many choices that were."""
        return self.stream.close(self, reason)


class WorkerStream:
    """The state of one connection. `changed` is called whenever room may have opened or closed. The worker's token ids are below
    `vocab_size`."""

    def __init__(
        self,
        liveness: Liveness,
        breaker: Breaker,
        clock: Callable[[], float],
        changed: Callable[[], None],
        *,
        vocab_size: int,
    ):
        self.liveness = liveness
        self._vocab_size = vocab_size
        self._breaker = breaker
        self.outbound = Outbound()
        self.draining = False
        self._clock = clock
        self._changed = changed
        self._next_seq = 1
        self._next_handle = 1
        self._by_seq: dict[int, Ticket] = {}
        self._by_handle: dict[int, Ticket] = {}
        self._unaccepted: deque[Ticket] = deque()
        self._unseen = Unseen()
        self.adapters = WorkerAdapters()
        self.cursor: KvCursor | None = None  # where its KV frames go

    @property
    def pending(self) -> Share:
        """What was sent that the last Load cannot know of."""
        return self._unseen.total

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._by_seq)

    def credits(self, now: float) -> int:
        """How many Submits may be sent now."""
        return max(0, self.liveness.credits(now) - len(self._unseen))

    def takes(self, now: float) -> bool:
        """Whether a Submit may be sent now. What waits to be written is bounded: there nobody could pass anybody."""
        return self.liveness.credits(now) > len(self._unseen) and self.outbound.submits < MOST_UNWRITTEN

    async def next_frame(self) -> pb.Up:
        """What is to be written next."""
        frame = await self.outbound.get()
        if frame.HasField("submit") and self.outbound.submits == MOST_UNWRITTEN - 1:
            self._changed()
        return frame

    def submit(self, request: TokenRequest, sink: Sink, share: Share | None = None) -> Ticket:
        """Send `request`; its seq and its choices' handles are given here. Returns before anything is written. `share` is what it adds to
        the worker until a Load covers it; without one, its choices alone."""
        seq, first = self._next_seq, self._next_handle
        self._next_seq, self._next_handle = seq + 1, first + len(request.choices)
        choices = tuple(replace(choice, handle=first + i) for i, choice in enumerate(request.choices))
        frames = list(
            wire.submit_to_pb(replace(request, seq=seq, choices=choices))
        )  # may raise: before anything counts it
        ticket = self._open(seq, choices, sink)
        self._breaker.sent(self._clock())
        self._unseen.add(seq, share or Share(len(choices)))
        self.outbound.put_submit(seq, frames)
        return ticket

    def _open(self, seq: int, choices: Sequence[Choice], sink: Sink) -> Ticket:
        handles = tuple(choice.handle for choice in choices)
        ticket = Ticket(stream=self, seq=seq, handles=handles, sink=sink, open=set(handles))
        self._by_seq[seq] = ticket
        self._by_handle |= dict.fromkeys(handles, ticket)
        self._unaccepted.append(ticket)
        return ticket

    def abort(self, ticket: Ticket, handles: Sequence[int], reason: AbortReason) -> None:
        """See Ticket.abort."""
        still = [handle for handle in handles if handle in ticket.open]
        if still and self._by_seq.get(ticket.seq) is ticket:
            self.outbound.put_abort(ticket.seq, wire.abort_to_pb(still, reason))

    def close(self, ticket: Ticket, reason: AbortReason) -> int:
        """See Ticket.close."""
        if self._by_seq.get(ticket.seq) is not ticket:
            return 0
        if self.outbound.take_back(ticket.seq):
            self._unseen.drop(ticket.seq)
        else:
            self.abort(ticket, ticket.handles, reason)
        self._breaker.withdrawn()
        aborted = len(ticket.open)
        self._forget(ticket)
        return aborted

    def lose(self, message: str) -> None:
        """End every open request as lost."""
        tickets = list(self._by_seq.values())
        suspects = sum(not ticket.progressed for ticket in tickets)
        loss = Loss(message=message, suspects=suspects, expected=self.draining)
        if tickets and not self.draining:
            self._breaker.failed(self._clock())
        for ticket in tickets:
            if self._by_seq.get(ticket.seq) is ticket:  # an earlier sink may have closed it
                self._forget(ticket)
                ticket.sink.lost(loss)

    def give_up(self, message: str) -> None:
        """Lose every open request of a worker that still listens: tell it, too."""
        for ticket in list(self._by_seq.values()):
            self.abort(ticket, ticket.handles, AbortReason.CLIENT)
        self.lose(message)

    def handle(self, frame: pb.Down) -> None:
        """Take one frame. Raises ValueError where it makes no sense."""
        self.liveness.heard(self._clock())
        match frame.WhichOneof("frame"):
            case "step_batch":
                self._step(frame.step_batch)
            case "finish":
                self._finish(wire.finish_from_pb(frame.finish))
            case "reject":
                self._reject(wire.reject_from_pb(frame.reject))
            case "load":
                self._load(believed(wire.load_from_pb(frame.load)))
            case "draining":
                self.draining = True
                self._changed()
            case "adapter_state":
                self.adapters.take(adapter_state_from_pb(frame.adapter_state))
            case "kv_delta" if self.cursor is not None:
                self.cursor.delta(wire.kv_delta_from_pb(frame.kv_delta))
            case "kv_snapshot" if self.cursor is not None:
                self.cursor.snapshot(wire.kv_snapshot_from_pb(frame.kv_snapshot))
            case "welcome":
                raise ValueError("a second Welcome")

    def _step(self, batch: pb.StepBatch) -> None:
        step = wire.step_from_pb(batch)
        if batch.tokens and max(batch.tokens) >= self._vocab_size:
            raise ValueError(f"token {max(batch.tokens)}, of a model with {self._vocab_size}")
        self._acknowledge(step.acked_seq)
        for delta in step.deltas:
            ticket = self._by_handle.get(delta.handle)
            if ticket is not None:
                if not ticket.progressed and delta.tokens:
                    ticket.progressed = True
                    self._breaker.progressed()
                ticket.sink.tokens(delta)

    def _finish(self, finished: Finished) -> None:
        ticket = self._by_handle.pop(finished.handle, None)
        if ticket is None:
            return
        self._judge(finished)
        ticket.open.discard(finished.handle)
        if not ticket.open:
            self._forget(ticket)
        ticket.sink.finished(finished)

    def _judge(self, finished: Finished) -> None:
        """What an end says of the worker: nothing, where a caller, a deadline or a drain brought it."""
        match finished.reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                self._breaker.succeeded()
            case FinishReason.ERROR if not finished.param:
                self._breaker.failed(self._clock())
            case _:
                self._breaker.withdrawn()

    def _reject(self, rejected: Rejected) -> None:
        ticket = self._by_seq.get(rejected.seq)
        self._breaker.withdrawn()
        self._unseen.drop(rejected.seq)
        if ticket is not None:
            self._forget(ticket)
            ticket.sink.rejected(rejected)

    def _load(self, load: Load) -> None:
        self.liveness.loaded(load, self._clock())
        self._unseen.covered(load.acked_seq)
        self._acknowledge(load.acked_seq)
        self._changed()

    def _acknowledge(self, acked_seq: int) -> None:
        while self._unaccepted and self._unaccepted[0].seq <= acked_seq:
            ticket = self._unaccepted.popleft()
            if self._by_seq.get(ticket.seq) is ticket:
                ticket.sink.accepted()

    def _forget(self, ticket: Ticket) -> None:
        self._by_seq.pop(ticket.seq, None)
        for handle in ticket.open:
            self._by_handle.pop(handle, None)
        ticket.open.clear()
